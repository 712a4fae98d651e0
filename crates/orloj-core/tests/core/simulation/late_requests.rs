//! Requests of transactions that arrive after their caller has stopped waiting for the response.
//!
//! The caller gets an error, and the client does not send such a request again
//! (`a_request_that_may_have_arrived_is_not_sent_again`).
//!
//! Invariant: a late request has the effect that it would have had in time, unless the producer was
//! fenced or its transaction has ended.

use orloj_core::model::Timestamp;

use super::broker::{ClientRecord, SimulatedBroker, SimulatedOffsetCommit};
use super::fault_kinds::FaultKind;
use super::group::Membership;
use super::log::SimulatedTransactionState;
use super::transaction::Producer;

/// A request that is still on its way.
#[derive(Debug)]
pub(super) struct LateRequest {
    pub(super) arrives: Timestamp,
    pub(super) call: LateCall,
}

/// What it requests.
#[derive(Debug)]
pub(super) enum LateCall {
    Records(Producer, Vec<ClientRecord>),
    Offsets(Producer, Vec<SimulatedOffsetCommit>, Membership),
    /// Commits what an owner has open, whose clock showed this.
    Commit(Producer, Timestamp),
    Abort(Producer),
    /// Opens a producer of this id.
    Init(usize),
}

impl LateCall {
    /// What it has led to, and how many offsets it has committed.
    pub(super) fn execute(self, broker: &mut SimulatedBroker) -> (FaultKind, u64) {
        let (kind, result) = match self {
            Self::Records(by, records) => {
                (FaultKind::RecordsLate, broker.send_rest(by, records).map(|()| 0))
            }
            Self::Offsets(by, ..) | Self::Commit(by, _) | Self::Abort(by)
                if !broker.is_open(by) =>
            {
                (FaultKind::LateRequestFenced, Ok(0))
            }
            Self::Offsets(by, offsets, membership) => {
                let sent = broker.send_offsets(by, &offsets, &membership);
                (FaultKind::OffsetsLate, sent.map(|()| 0))
            }
            Self::Commit(by, clock) => (FaultKind::CommitLate, broker.commit(by, clock)),
            Self::Abort(by) => {
                let ended = broker.end(by, SimulatedTransactionState::Aborted);
                (FaultKind::AbortLate, ended.map(|()| 0))
            }
            Self::Init(id) => (FaultKind::OpenLate, broker.init(id).map(|_| 0)),
        };
        result.map_or((FaultKind::LateRequestFenced, 0), |committed| (kind, committed))
    }
}
