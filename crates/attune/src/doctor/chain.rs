//! The chain of the audit log: whether the entries of this month are as they were written.

use std::time::{Duration, Instant};

use attune_store::{AuditStore, ChainLink, Store, StoreError, check_links};
use chrono::{DateTime, Datelike as _, NaiveDate, Utc};

use super::database::answered;
use super::finding::Findings;
use super::pages::AUDIT;

const NAME: &str = "audit chain";
/// How long it goes on: less than anything that is asked may take.
const TIME: Duration = Duration::from_secs(3);
/// How many links are read at once.
const PAGE: u32 = 1_000;

/// What was seen of the links of this month.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Entries that are as they were written.
    entries: u64,
    /// What is wrong, and from which link on.
    broken: Option<(i64, &'static str)>,
    /// Time was over before the last link.
    cut_short: bool,
}

pub(super) async fn look(store: &dyn Store, found: &mut Findings) {
    let Some(now) = answered(found, NAME, store.now()).await else {
        return;
    };
    let month = month_of(now);
    let asking = walk(store, month, Instant::now() + TIME);
    let Some(seen) = answered(found, NAME, asking).await else {
        return;
    };
    let since = month.format("%Y-%m-%d");
    if let Some((link, what)) = seen.broken {
        let says = format!("link {link} of the audit log: {what}");
        let advice =
            "`attune audit verify` walks all of it; ask who was in the database, and keep a copy";
        return found.problem(NAME, says, (advice, AUDIT));
    }
    let entries = seen.entries;
    found.ok(
        NAME,
        match seen.cut_short {
            false => format!("{entries} entries since {since} are as they were written"),
            true => format!(
                "cut short after {} s: the first {entries} entries since {since} are as they were written; \
                 `attune audit verify` looks at all",
                TIME.as_secs()
            ),
        },
    );
}

/// The first moment of the month, in UTC.
fn month_of(now: DateTime<Utc>) -> DateTime<Utc> {
    let first = NaiveDate::from_ymd_opt(now.year(), now.month(), 1);
    let first = first.and_then(|day| day.and_hms_opt(0, 0, 0));
    first.map_or(now, |first| first.and_utc())
}

/// Walks the links of what was done since then, until the deadline.
async fn walk(
    store: &dyn AuditStore,
    month: DateTime<Utc>,
    deadline: Instant,
) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    let Some(mut last) = before(store, month.timestamp_micros()).await? else {
        return Ok(seen);
    };
    loop {
        if Instant::now() >= deadline {
            seen.cut_short = true;
            return Ok(seen);
        }
        let page = store
            .audit_chain(last.as_ref().map_or(0, |it| it.no), PAGE)
            .await?;
        match check_links(last.as_ref(), &page) {
            Ok(entries) => seen.entries += entries,
            Err(broken) => {
                seen.broken = Some(broken);
                return Ok(seen);
            }
        }
        let is_last = page.len() < PAGE as usize;
        match page.into_iter().next_back() {
            Some(link) if !is_last => last = Some(link),
            _ => return Ok(seen),
        }
    }
}

/// The last link before a time, in microseconds since 1970: `Some(None)` where the first is not before it, and nothing
/// where there is no link at all. Numbers have no gaps, and times rise with them but for clocks that were wrong, so
/// that it is found in a few dozen looks, however long the chain is.
async fn before(
    store: &dyn AuditStore,
    micros: i64,
) -> Result<Option<Option<ChainLink>>, StoreError> {
    let at = async |no: i64| -> Result<Option<ChainLink>, StoreError> {
        Ok(store.audit_chain(no - 1, 1).await?.into_iter().next())
    };
    // Those whose entries were removed by age are the oldest.
    let is_before = |link: &ChainLink| link.entry.as_ref().is_none_or(|it| it.at_micros < micros);
    let Some(first) = at(1).await? else {
        return Ok(None);
    };
    if !is_before(&first) {
        return Ok(Some(None));
    }
    let (mut last, mut step) = (first, 1_i64);
    // Ever further while it is before, and then back in ever smaller steps.
    while let Some(link) = at(last.no + step).await?.filter(is_before) {
        last = link;
        step = step.saturating_mul(2).min(1 << 40);
    }
    while step > 1 {
        step /= 2;
        if let Some(link) = at(last.no + step).await?.filter(is_before) {
            last = link;
        }
    }
    Ok(Some(Some(last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_on_its_first_day() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert_eq!(month_of(now).to_rfc3339(), "2027-01-01T00:00:00+00:00");
    }
}
