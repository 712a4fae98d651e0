//! The order of one trigger: its records, with its fires between them, and its state after each.
//!
//! Invariant: a decision is explained by the state before its record alone. A fire is placed as
//! late as the first record whose decision needs it, and no earlier than the last whose decision
//! needs a pending trigger.

use super::{CommandWord, Decision, LoggedRecord, RecordKind, ShownStatus, TriggerLog};

/// The state of a trigger after some of its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TriggerState {
    /// `None` if nothing was ever registered.
    pub(crate) defined: Option<DefinedTrigger>,
    pub(crate) phase: TriggerPhase,
    /// The requests with a key that were executed.
    executed: Vec<ExecutedRequest>,
}

/// So many requests with a key are remembered for sure, the newest, for a day: no run is longer.
const KEYS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
struct ExecutedRequest {
    key: String,
    generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DefinedTrigger {
    pub(crate) generation: u64,
    /// The record that defines it.
    pub(crate) revision: u64,
    pub(crate) name: String,
    pub(crate) fire_at: u64,
    pub(crate) retain: bool,
    pub(crate) paused: bool,
    /// It fires whatever its time is.
    pub(crate) called: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TriggerPhase {
    #[default]
    Absent,
    Pending,
    /// It was needed to have fired.
    Fired,
    Cancelled,
}

/// The order of one trigger.
#[derive(Debug)]
pub(crate) struct TriggerOrder<'a> {
    pub(crate) log: &'a TriggerLog,
    /// After so many records; one more than there are records.
    pub(crate) states: Vec<TriggerState>,
}

impl<'a> TriggerOrder<'a> {
    /// The order that the log gives; `why` gets each decision that it does not explain.
    pub(crate) fn of(log: &'a TriggerLog, due_by: u64, why: &mut Vec<String>) -> Self {
        let mut order = Self { log, states: vec![TriggerState::default()] };
        for record in &log.records {
            let mut state = order.states[order.states.len() - 1].clone();
            match &record.decisions[..] {
                [decision] => {
                    if let Err(reason) = order.decide(&mut state, record, *decision) {
                        why.push(format!("{record:?}: {reason}; before it {:?}", order.last()));
                    }
                }
                other => why.push(format!("{record:?} was decided {} times", other.len())),
            }
            order.states.push(state);
        }
        order.check_fires(why);
        order.check_last(due_by, why);
        order
    }

    fn last(&self) -> &TriggerState {
        &self.states[self.states.len() - 1]
    }

    /// When the generation fired, if it did.
    pub(crate) fn fired_at(&self, generation: u64) -> Option<u64> {
        let fires = self.log.fires.iter().filter(|fire| fire.generation == generation);
        fires.map(|fire| fire.visible).min()
    }

    /// The statuses that can be seen after so many records.
    pub(crate) fn shown(&self, place: usize) -> Vec<ShownStatus> {
        let TriggerState { defined, phase, .. } = &self.states[place];
        let Some(defined) = defined else { return Vec::new() };
        match phase {
            TriggerPhase::Absent => Vec::new(),
            TriggerPhase::Cancelled => vec![ShownStatus::Cancelled],
            TriggerPhase::Fired => vec![ShownStatus::Fired],
            TriggerPhase::Pending => {
                let mut shown = vec![defined.status_before()];
                if defined.paused && defined.called {
                    shown.push(ShownStatus::Paused);
                }
                let fires = self.fired_at(defined.generation).is_some();
                if fires && defined.can_fire() && !self.is_pending_later(place) {
                    shown.push(ShownStatus::Fired);
                }
                shown
            }
        }
    }

    /// Whether a later decision needs the trigger that is pending now to be pending still.
    fn is_pending_later(&self, place: usize) -> bool {
        let generation = self.states[place].generation();
        let later = self.log.records.iter().zip(&self.states).skip(place);
        let decided = later.filter(|(record, state)| state.executed_by(record).is_none());
        decided.flat_map(|(record, _)| &record.decisions).any(|decision| match *decision {
            Decision::Paused { generation: g }
            | Decision::Resumed { generation: g, .. }
            | Decision::Called { generation: g }
            | Decision::Cancelled { generation: g }
            | Decision::Changed { generation: g, .. } => Some(g) == generation,
            Decision::Accepted { replaced, .. } => replaced.is_some() && replaced == generation,
            Decision::Kept { .. } | Decision::NotPending { .. } | Decision::Refused => false,
        })
    }

    fn decide(
        &self,
        state: &mut TriggerState,
        record: &LoggedRecord,
        decision: Decision,
    ) -> Result<(), &'static str> {
        match record.kind {
            RecordKind::Register { keep, retain } => {
                self.register(state, record, (keep, retain), decision)
            }
            RecordKind::Change { wanted } => self.change(state, record, wanted, decision),
            RecordKind::Cancel => match decision {
                Decision::Cancelled { generation } => {
                    state.needs_pending(generation)?;
                    state.phase = TriggerPhase::Cancelled;
                    Ok(())
                }
                _ => self.not_pending(state, decision),
            },
            RecordKind::Command(word) => self.command(state, word, record, decision),
        }
    }

    fn register(
        &self,
        state: &mut TriggerState,
        record: &LoggedRecord,
        (keep, retain): (bool, bool),
        decision: Decision,
    ) -> Result<(), &'static str> {
        let (executed, is_remembered) = (state.executed_by(record), state.remembers(record));
        let keep = keep || is_remembered || executed.is_some() && is_kept(decision);
        match decision {
            Decision::Accepted { generation, fire_at, replaced } => {
                if generation != record.offset {
                    return Err("it is not the generation");
                }
                let is_retained = state.defined.as_ref().is_some_and(|defined| defined.retain);
                if is_remembered || keep && is_retained {
                    return Err("the one before is remembered");
                }
                match replaced {
                    Some(_) if keep => return Err("it keeps, and has replaced one"),
                    Some(replaced) => state.needs_pending(replaced)?,
                    None => self.needs_none_pending(state)?,
                }
                state.remember(record, generation);
                let (revision, name) = (generation, record.name.clone());
                let (paused, called) = (false, false);
                let defined =
                    DefinedTrigger { generation, revision, name, fire_at, retain, paused, called };
                (state.defined, state.phase) = (Some(defined), TriggerPhase::Pending);
                Ok(())
            }
            Decision::Kept { generation, fire_at } if keep => {
                let defined = state.defined.as_ref().ok_or("nothing was there to be kept")?;
                if !defined.retain && executed.is_none() {
                    state.needs_pending(generation)?;
                }
                match defined.generation == generation && defined.fire_at == fire_at {
                    true => Ok(()),
                    false => Err("it is another one that was there"),
                }
            }
            _ => Err("a registration is not decided so"),
        }
    }

    fn change(
        &self,
        state: &mut TriggerState,
        record: &LoggedRecord,
        wanted: Option<u64>,
        decision: Decision,
    ) -> Result<(), &'static str> {
        let revision_before = state.defined.as_ref().map(|defined| defined.revision);
        match decision {
            Decision::Changed { generation, revision, fire_at } => {
                state.needs_pending(generation)?;
                if revision != record.offset {
                    return Err("it is not the revision");
                }
                if wanted.is_some() && wanted != revision_before {
                    return Err("another record defined the trigger");
                }
                if let Some(defined) = &mut state.defined {
                    record.name.clone_into(&mut defined.name);
                    (defined.revision, defined.fire_at) = (revision, fire_at);
                }
                Ok(())
            }
            Decision::Kept { generation: revision, .. } => {
                let generation = state.generation().ok_or("nothing was there to be changed")?;
                state.needs_pending(generation)?;
                if Some(revision) != revision_before {
                    return Err("another record defines the trigger");
                }
                match wanted.is_some_and(|wanted| wanted != revision) {
                    true => Ok(()),
                    false => Err("it is the wanted one, and was kept"),
                }
            }
            _ => self.not_pending(state, decision),
        }
    }

    fn command(
        &self,
        state: &mut TriggerState,
        word: CommandWord,
        record: &LoggedRecord,
        decision: Decision,
    ) -> Result<(), &'static str> {
        if let Decision::Called { generation } = decision {
            if state.executed_by(record) == Some(generation) {
                return Ok(());
            }
            if state.remembers(record) {
                return Err("the request was executed before");
            }
        }
        let ((CommandWord::Pause, Decision::Paused { generation })
        | (CommandWord::Resume, Decision::Resumed { generation, .. })
        | (CommandWord::FireNow, Decision::Called { generation })) = (word, decision)
        else {
            return self.not_pending(state, decision);
        };
        state.needs_pending(generation)?;
        state.remember(record, generation);
        let defined = state.defined.as_mut().ok_or("nothing is defined")?;
        match word {
            CommandWord::Pause => defined.paused = true,
            CommandWord::Resume => defined.paused = false,
            CommandWord::FireNow => defined.called = true,
        }
        match decision {
            Decision::Resumed { fire_at, .. } if fire_at != defined.fire_at => {
                Err("it is due at another time")
            }
            _ => Ok(()),
        }
    }

    fn not_pending(
        &self,
        state: &mut TriggerState,
        decision: Decision,
    ) -> Result<(), &'static str> {
        let Decision::NotPending { fired } = decision else {
            return Err("such a record is not decided so");
        };
        self.needs_none_pending(state)?;
        match fired.is_none_or(|generation| self.fired_at(generation).is_some()) {
            true => Ok(()),
            false => Err("the generation that is said to have fired has not"),
        }
    }

    /// Nothing is pending: what was has fired.
    fn needs_none_pending(&self, state: &mut TriggerState) -> Result<(), &'static str> {
        let Some(defined) = &state.defined else { return Ok(()) };
        if state.phase != TriggerPhase::Pending {
            return Ok(());
        }
        if self.fired_at(defined.generation).is_none() {
            return Err("one is pending, which has not fired");
        }
        if !defined.can_fire() {
            return Err("the pending one is paused");
        }
        state.phase = TriggerPhase::Fired;
        Ok(())
    }

    /// Each fire is of a generation that was accepted and neither cancelled nor replaced, once.
    fn check_fires(&self, why: &mut Vec<String>) {
        let mut generations: Vec<_> = self.log.fires.iter().map(|fire| fire.generation).collect();
        generations.sort_unstable();
        for pair in generations.windows(2).filter(|pair| pair[0] == pair[1]) {
            why.push(format!("{} has fired more than once", pair[0]));
        }
        generations.dedup();
        let decisions = || self.log.records.iter().flat_map(|record| &record.decisions);
        for fired in generations {
            let accepted = decisions().any(|decision| {
                matches!(*decision, Decision::Accepted { generation, .. } if generation == fired)
            });
            if !accepted {
                why.push(format!("{fired} has fired and was not accepted"));
            }
            let stopped = decisions().any(|decision| match *decision {
                Decision::Cancelled { generation } => generation == fired,
                Decision::Accepted { replaced, .. } => replaced == Some(fired),
                _ => false,
            });
            if stopped {
                why.push(format!("{fired} has fired although it was cancelled or replaced"));
            }
        }
    }

    /// What is pending in the end.
    fn check_last(&self, due_by: u64, why: &mut Vec<String>) {
        let TriggerState { defined: Some(defined), phase: TriggerPhase::Pending, .. } = self.last()
        else {
            return;
        };
        let is_due = defined.called || defined.fire_at <= due_by && !defined.paused;
        let fired = self.fired_at(defined.generation).is_some();
        if is_due && !fired {
            why.push(format!("it is due and has not fired: {defined:?}"));
        }
        if fired && !defined.can_fire() {
            why.push(format!("it has fired while it was paused: {defined:?}"));
        }
    }
}

fn is_kept(decision: Decision) -> bool {
    matches!(decision, Decision::Kept { .. })
}

impl TriggerState {
    pub(crate) fn generation(&self) -> Option<u64> {
        self.defined.as_ref().map(|defined| defined.generation)
    }

    /// The generation that a request with the record's key has registered or fired.
    fn executed_by(&self, record: &LoggedRecord) -> Option<u64> {
        let key = record.key.as_ref()?;
        let found = self.executed.iter().rev().find(|request| request.key == *key);
        found.map(|request| request.generation)
    }

    /// Whether the trigger surely remembers that a request with the record's key was executed.
    fn remembers(&self, record: &LoggedRecord) -> bool {
        let mut newest = self.executed.iter().rev().take(KEYS_MAX);
        record.key.as_ref().is_some_and(|key| newest.any(|request| request.key == *key))
    }

    fn remember(&mut self, record: &LoggedRecord, generation: u64) {
        let Some(key) = record.key.clone() else { return };
        self.executed.push(ExecutedRequest { key, generation });
    }

    fn needs_pending(&self, generation: u64) -> Result<(), &'static str> {
        match self.phase == TriggerPhase::Pending && self.generation() == Some(generation) {
            true => Ok(()),
            false => Err("that generation is not pending"),
        }
    }
}

impl DefinedTrigger {
    fn can_fire(&self) -> bool {
        !self.paused || self.called
    }

    /// What it is shown as until it fires.
    pub(crate) fn status_before(&self) -> ShownStatus {
        if self.can_fire() { ShownStatus::Pending } else { ShownStatus::Paused }
    }
}
