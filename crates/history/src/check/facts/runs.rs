//! What workers and programs recorded of runs.

use super::*;

impl Facts {
    pub(super) fn add_run(&mut self, number: u32, record: &Record) {
        match record {
            Record::Start {
                execution_id,
                attempt,
                action_id,
                t_ns,
            } => {
                self.of_action(*execution_id, *action_id);
                self.mark(
                    (*execution_id, *attempt),
                    Seen::Worker,
                    false,
                    *t_ns,
                    number,
                );
            }
            Record::End {
                execution_id,
                attempt,
                t_ns,
                ..
            } => self.mark((*execution_id, *attempt), Seen::Worker, true, *t_ns, number),
            Record::ProgramStart {
                execution_id,
                attempt,
                action_ref,
                pid,
                t_ns,
            }
            | Record::ProgramEnd {
                execution_id,
                attempt,
                action_ref,
                pid,
                t_ns,
            } => {
                let action_ref = self.intern(action_ref);
                let seen = Seen::Program {
                    pid: *pid,
                    action_ref,
                };
                let is_end = matches!(record, Record::ProgramEnd { .. });
                self.mark((*execution_id, *attempt), seen, is_end, *t_ns, number);
            }
            Record::ProcessExit {
                executions, t_ns, ..
            } => {
                for id in executions {
                    self.taken_down.entry(*id).or_default().push(*t_ns);
                }
            }
            _ => {}
        }
    }
}
