//! `attune-sim`: runs many seeds on all cores, and shows the shortest history of what broke.

use std::process::ExitCode;

use attune_sim::{Options, Plant, Report, check};

/// What can be asked; the plants are named behind it.
const USAGE: &str = "\
usage: attune-sim [--seeds N] [--first-seed S] [--jobs J] [--plant NAME] [--json] [--trace]
  --seeds N       how many seeds to run (1000)
  --first-seed S  the first of them (0)
  --jobs J        how many threads (the cores of the machine)
  --plant NAME    plant a bug
  --json          print nothing but the last line
  --trace         print what happens in the first seed, and run no other
The last line is JSON. Exit code 1 when a promise was broken, 2 when the arguments are wrong.";

fn usage() -> String {
    let plants = Plant::ALL.map(|(name, _)| name).join(" ");
    format!("{USAGE}\nPlants: {plants}")
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{}", usage());
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("attune-sim: {problem}\n{}", usage());
            return ExitCode::from(2);
        }
    };
    let report = check(&options);
    if !options.json {
        print!("{}", report.text());
    }
    println!("{}", report.json());
    let Report { broken, .. } = report;
    ExitCode::from(u8::from(!broken.is_empty()))
}
