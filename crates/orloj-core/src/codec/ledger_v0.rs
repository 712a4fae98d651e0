//! Ledger values as the first release wrote them. It can take over from this one as long as no
//! pending trigger needs more.
//!
//! Invariant: a value is written like this only if version 0 has a place for all of it. Each type
//! mirrors a schema record of `schemas/before/ledger-0.avsc` name by name.

use bytes::Bytes;
use serde::Serialize;

use super::avro_wire::Wire;
use super::row_v2;
use crate::model::avro_long;
use crate::model::definition::{Definition, Header, Target, TopicTarget};
use crate::model::entry::{Entry, FireId, FireRow, Row};
use crate::model::ledger::LedgerValue;
use crate::model::text::Text;
use crate::model::timeline::TimelineKey;
use crate::model::{Offset, Timestamp};

#[derive(Serialize)]
pub(super) enum LedgerV0<'a> {
    Entry(EntryV0<'a>),
    Skip,
    Cursor {
        metadata: &'a str,
        #[serde(with = "avro_long")]
        offset: Offset,
        clean: bool,
    },
    Barrier {
        #[serde(with = "avro_long")]
        nonce: u64,
    },
}

#[derive(Serialize)]
#[serde(rename = "Entry")]
pub(super) struct EntryV0<'a> {
    key: Wire<&'a TimelineKey>,
    row: RowV0<'a>,
}

#[derive(Serialize)]
enum RowV0<'a> {
    Fire(FireRowV0<'a>),
    Veto {
        trigger: &'a Text,
        #[serde(with = "avro_long")]
        cancel: Offset,
    },
}

#[derive(Serialize)]
#[serde(rename = "FireRow", rename_all = "camelCase")]
struct FireRowV0<'a> {
    id: Wire<&'a FireId>,
    #[serde(with = "avro_long")]
    scheduled: Timestamp,
    in_ledger: bool,
    definition: DefinitionV0<'a>,
}

#[derive(Serialize)]
#[serde(rename = "Definition")]
struct DefinitionV0<'a> {
    target: TargetV0<'a>,
    payload: &'a Option<Bytes>,
    headers: &'a [Header],
    /// The pauses of the retry policy, in ms.
    retry: Option<Vec<i64>>,
    caller: &'a Option<Text>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum TargetV0<'a> {
    Topic(&'a TopicTarget),
    Http(HttpTargetV0<'a>),
}

#[derive(Serialize)]
#[serde(rename = "HttpTarget")]
struct HttpTargetV0<'a> {
    url: &'a Text,
    method: &'a Text,
}

impl<'a> LedgerV0<'a> {
    /// The value, if version 0 has a place for all of it.
    pub(super) fn of(value: &'a LedgerValue) -> Option<Self> {
        Some(match value {
            LedgerValue::Entry(Entry { key, row }) => {
                Self::Entry(EntryV0 { key: Wire(key), row: RowV0::of(row)? })
            }
            LedgerValue::Skip => Self::Skip,
            LedgerValue::Cursor { metadata, offset, clean } => {
                Self::Cursor { metadata, offset: *offset, clean: *clean }
            }
            LedgerValue::Barrier { nonce } => Self::Barrier { nonce: *nonce },
        })
    }
}

impl<'a> RowV0<'a> {
    fn of(row: &'a Row) -> Option<Self> {
        match row {
            Row::Fire(row) if row.lifecycle.is_some() || row_v2::is_needed(row) => None,
            Row::Fire(FireRow { id, scheduled, in_ledger, definition, .. }) => {
                Some(Self::Fire(FireRowV0 {
                    id: Wire(id),
                    scheduled: *scheduled,
                    in_ledger: *in_ledger,
                    definition: DefinitionV0::of(definition),
                }))
            }
            Row::Veto { trigger, cancel } => Some(Self::Veto { trigger, cancel: *cancel }),
            Row::Watch { .. } => None,
        }
    }
}

impl<'a> DefinitionV0<'a> {
    fn of(definition: &'a Definition) -> Self {
        let Definition { target, payload, headers, retry, caller } = definition;
        let target = match target {
            Target::Topic(topic) => TargetV0::Topic(topic),
            Target::Http(http) => {
                TargetV0::Http(HttpTargetV0 { url: &http.url, method: &http.method })
            }
        };
        let pauses = |delays: &[u64]| delays.iter().map(|delay| delay.cast_signed()).collect();
        let retry = retry.as_deref().map(|policy| pauses(&policy.delays));
        Self { target, payload, headers, retry, caller }
    }
}
