//! Prints all records about one trigger.
//!
//! Invariant: for people only; nothing is decided here.

use orloj_core::model::ledger::LedgerKey;
use orloj_core::model::text::Text;

use super::is_forwarded;
use crate::simulation::broker::SimulatedSend;
use crate::simulation::clients::serial;
use crate::simulation::cluster::partition_of;
use crate::simulation::run::SimulationRun;

/// All records about one trigger: for the analysis of a seed that failed.
pub(in crate::simulation) fn records_of(run: &SimulationRun, trigger: &str) -> String {
    let broker = &run.cluster.broker;
    let p = partition_of(trigger.as_bytes());
    let mut lines = Vec::new();
    for (offset, at, raw) in broker.triggers[p].committed(&broker.transaction_states) {
        if raw.key == trigger.as_bytes() && (partition_of(&raw.key) == p || is_forwarded(raw)) {
            lines.push((at, format!("trigger {offset} {:?}", run.users.intents[serial(raw)])));
        }
    }
    for (offset, at, signal) in broker.signals[p].committed(&broker.transaction_states) {
        if *signal.trigger() == *trigger {
            lines.push((at, format!("signal {offset} {signal:?}")));
        }
    }
    let about = format!("{:?}", Text::from(trigger));
    for (offset, at, record) in broker.ledger[p].committed(&broker.transaction_states) {
        let text = format!("{record:?}");
        if text.contains(&about) || matches!(record.key, LedgerKey::Skip(_)) {
            lines.push((at, format!("ledger {offset} {text}")));
        }
    }
    let outputs = [&broker.fires[p], &broker.others[p]];
    for (_, at, sent) in
        outputs.into_iter().flat_map(|log| log.committed(&broker.transaction_states))
    {
        let text = format!("{:?}", sent.effect);
        if text.contains(&about) {
            let SimulatedSend { takeover_number, clock, order, .. } = sent;
            let before = broker.decided_before(p, sent);
            lines.push((
                at,
                format!("{order}: by {takeover_number} at {clock} from {before:?} {text}"),
            ));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    lines.iter().map(|(at, text)| format!("{at} {text}\n")).collect()
}
