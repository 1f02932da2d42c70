//! What clients and the API recorded of submissions.

use super::*;

impl Facts {
    pub(super) fn add_submission(&mut self, number: u32, record: &Record) {
        match record {
            Record::SubmitInvoke {
                request_id,
                action_ref,
                priority,
                delayed,
                requested_by,
                t_ns,
            } => {
                let user = requested_by.as_deref().map(|name| self.intern(name));
                let action_ref = self.intern(action_ref);
                let request = self.requests.entry(*request_id).or_default();
                request.invokes += 1;
                request.last_invoked = request.last_invoked.max(Some(*t_ns));
                let queue = (action_ref, *priority);
                request.differs |= request.queue.is_some_and(|first| first != queue)
                    || (request.invokes > 1 && request.user != user)
                    || (request.invokes > 1 && request.delayed != *delayed);
                request.delayed = *delayed;
                request.queue = Some(queue);
                request.user = user;
                let first = request.invoked.get_or_insert((*t_ns, number));
                *first = (*first).min((*t_ns, number));
            }
            Record::SubmitOk {
                request_id,
                execution_id,
                t_ns,
            } => {
                self.tell(*request_id, *execution_id, *t_ns, number);
                self.requests.entry(*request_id).or_default().oks += 1;
            }
            Record::Answered {
                request_id,
                http_status,
                execution_id,
                code,
                t_ns,
            } => {
                if let Some(execution_id) = execution_id {
                    self.answers += 1;
                    self.tell(*request_id, *execution_id, *t_ns, number);
                }
                let request = self.requests.entry(*request_id).or_default();
                request.answered((*t_ns, number), *http_status, code.as_deref());
            }
            Record::SubmitInfo { request_id, t_ns } => {
                let request = self.requests.entry(*request_id).or_default();
                request.infos += 1;
                request.last_given_up = request.last_given_up.max(Some(*t_ns));
            }
            Record::SubmitFail { request_id, .. } => {
                let request = self.requests.entry(*request_id).or_default();
                request.fails += 1;
                request.failed = Some(number);
            }
            _ => {}
        }
    }

    /// A request is known to be accepted.
    fn tell(&mut self, request_id: RequestId, id: ExecutionId, t_ns: i64, record: u32) {
        self.became(request_id, id, record);
        let request = self.requests.entry(request_id).or_default();
        let first = request.ok.get_or_insert((t_ns, record));
        *first = (*first).min((t_ns, record));
        let execution = self.executions.entry(id).or_default();
        execution.told.get_or_insert(record);
    }
}
