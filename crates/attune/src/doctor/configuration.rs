//! The settings, and the files that hold them.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use attune_config::LoadError;
use attune_runtime::error_chain;

use super::Patient;
use super::finding::{Findings, State};
use super::pages::{CONFIGURATION, LEAVING_LOOPBACK};
use crate::exposure;
use crate::roles::Role;

const AREA: &str = "configuration";

/// Settings that no process would start with.
pub(super) fn refused(error: &LoadError) -> Findings {
    let mut found = Findings::of(AREA);
    let advice = "mend what is named; `attune config default` shows every key with its explanation";
    found.problem("settings", error_chain(error), (advice, CONFIGURATION));
    found
}

pub(super) fn look(patient: &Patient) -> Findings {
    let mut found = Findings::of(AREA);
    let from = match &patient.config {
        Some(file) => format!("{} and variables", file.display()),
        None => "defaults and variables, no file".to_owned(),
    };
    found.ok("program", format!("attune {}", env!("VERSION_BUILT")));
    found.ok("settings", format!("read from {from}"));
    files(patient, &mut found);
    secrets(patient, &mut found);
    for words in exposure::exposures(&patient.settings, &patient.roles) {
        let advice = "leave it so only where nobody else listens on that network";
        found.warn("exposure", words, (advice, LEAVING_LOOPBACK));
    }
    for words in exposure::unopened(&patient.settings, &patient.roles) {
        found.warn("listeners", words, ("set both alike", LEAVING_LOOPBACK));
    }
    conflicts(patient, &mut found);
    found
}

/// Values that are good and do not go together.
fn conflicts(patient: &Patient, found: &mut Findings) {
    let settings = &patient.settings;
    let (body, message) = (
        settings.api.max_body_bytes,
        settings.broker.max_message_bytes,
    );
    let says = format!(
        "api.max_body_bytes is {body} and broker.max_message_bytes {message}: what lies between is read and then \
         refused"
    );
    let advice = "set api.max_body_bytes to no more than broker.max_message_bytes";
    let is_late = !patient.is_embedded() && patient.has(Role::Api) && body > message;
    let faults = [(is_late, State::Warning, says, (advice, CONFIGURATION))];
    found.first("values", faults, || "none fights another".to_owned());
}

/// Who may read and change what this process is told.
fn files(patient: &Patient, found: &mut Findings) {
    let settings = &patient.settings;
    let named: [(&str, Option<&PathBuf>); 6] = [
        ("the settings", patient.config.as_ref()),
        ("database.url_file", settings.database.url_file.as_ref()),
        ("broker.url_file", settings.broker.url_file.as_ref()),
        ("broker.tls.key_file", settings.broker.tls.key_file.as_ref()),
        ("api.tls.key_file", settings.api.tls.key_file.as_ref()),
        ("secrets.key_file", settings.secrets.key_file.as_ref()),
    ];
    let named = named
        .into_iter()
        .filter_map(|(what, file)| Some((what, file?)));
    let (mut seen, mut wrong) = (0, Vec::new());
    for (what, file) in named {
        seen += 1;
        wrong.extend(changeable(what, file));
    }
    if wrong.is_empty() {
        let says = match seen {
            0 => "there is none".to_owned(),
            1 => "it cannot be changed by others".to_owned(),
            _ => format!("none of {seen} can be changed by others"),
        };
        found.ok("files", says);
    }
    for (says, advice) in wrong {
        found.problem("files", says, (&advice, CONFIGURATION));
    }
}

/// Whether what is secret can be sealed and opened here.
fn secrets(patient: &Patient, found: &mut Findings) {
    let settings = &patient.settings;
    let unusable = crate::secrets::keyring(settings).err();
    let unusable = unusable.map(|error| format!("{error:#}"));
    let advice = "make it with `(umask 077; attune secrets new-key > FILE)`, or mend it: without it nothing starts";
    let faults = [(
        unusable.is_some(),
        State::Problem,
        unusable.unwrap_or_default(),
        (advice, CONFIGURATION),
    )];
    found.first("secrets", faults, || match settings.secrets.key_file {
        Some(_) => "what is secret is encrypted".to_owned(),
        None => "what is secret is hidden, and not encrypted".to_owned(),
    });
}

/// A file that others than its owner may change, who then say what this process does.
fn changeable(what: &str, file: &Path) -> Option<(String, String)> {
    let shown = file.display();
    let (mode, whose) = match std::fs::metadata(file) {
        Ok(seen) => (seen.mode() & 0o7777, seen.uid()),
        Err(error) => {
            let says = format!("{what} {shown}: {error}");
            return Some((says, "put it there, or leave the setting out".to_owned()));
        }
    };
    let own = rustix::process::geteuid().as_raw();
    if mode & 0o022 != 0 {
        let says = format!("{what} {shown}: others than its owner may change it (mode {mode:03o})");
        return Some((says, format!("chmod go-w {shown}")));
    }
    if whose != 0 && whose != own {
        let says = format!("{what} {shown} belongs to account {whose}, which may change it");
        return Some((says, format!("chown root {shown}, or run as that account")));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_may_change_is_told_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("attune.yaml");
        assert!(
            changeable("the settings", &file)
                .unwrap()
                .0
                .contains("No such file")
        );
        std::fs::write(&file, "").unwrap();
        let with = |mode| {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            changeable("the settings", &file)
        };
        assert_eq!(with(0o640), None);
        let (says, advice) = with(0o660).unwrap();
        assert!(
            says.contains("mode 660") && advice.starts_with("chmod go-w /"),
            "{says} {advice}"
        );
    }
}
