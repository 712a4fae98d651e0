//! A notifier that cannot write what it has reported to its log.
//!
//! Invariant: it sends messages and is ready, says what is wrong, and writes again as soon as it
//! can.

use super::unknown_offsets::{SOURCE_PARTITIONS, recorded_partitions};
use super::{CALLERS, DEADLINE, cluster, mail_number, write_letter};
use crate::faults::topic_admin::FaultTopicAdmin;
use crate::mail_server::MailServer;
use crate::process::OrlojProcess;
use crate::wait::until;

#[test]
fn a_notifier_sends_and_is_ready_while_its_log_cannot_be_written() {
    let mail = MailServer::start();
    let (cluster, _folder) = cluster("notify-unwritable", &mail, CALLERS);
    let notifier = cluster.start_ready("notifier", "notifier");
    let topic = cluster.names.notifications();
    FaultTopicAdmin::of(&cluster).delete(&topic);
    write_letter(&cluster, "billing");
    let first = mail_number(&mail, 1);
    assert!(first.text.contains("Subject: 1 dead letter of billing\n"), "{}", first.text);
    let remark = "notifier log: ready, but what was reported cannot be written to ";
    wait_for_state(&notifier, &format!("{remark}{topic}: "));
    write_letter(&cluster, "billing");
    let second = mail_number(&mail, 2);
    assert!(second.text.contains("Subject: 1 dead letter of billing\n"), "{}", second.text);
    assert!(notifier.is_ready());

    until("the topic to be created again", DEADLINE, || cluster.apply_topics());
    wait_for_state(&notifier, "notifier log: ready\n");
    assert_eq!(recorded_partitions(&cluster).len(), SOURCE_PARTITIONS);
    notifier.terminate();
}

/// Waits until the notifier is ready, and says this of its log.
pub(super) fn wait_for_state(notifier: &OrlojProcess, state: &str) {
    until(&format!("{state:?}"), DEADLINE, || {
        let answer = notifier.readiness_of_parts();
        (answer.split(' ').nth(1) == Some("200") && answer.contains(state)).then_some(())
    });
}
