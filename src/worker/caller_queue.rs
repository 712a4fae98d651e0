//! One caller's fires that wait, in the order in which they begin.
//!
//! Invariant: pure. Higher priorities begin first, equal ones in the order in which they came.
//! Memory follows what waits now, not what has waited once, whatever its priorities.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Fires that wait.
#[derive(Debug)]
pub struct CallerQueue<T> {
    /// By priority, the higher first, and by how many came before.
    fires: BTreeMap<(Reverse<u8>, u64), T>,
    /// How many came so far.
    next_sequence: u64,
}

impl<T> CallerQueue<T> {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fires.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fires.is_empty()
    }

    /// Takes in a fire of that priority, 0 to 255.
    pub fn push(&mut self, priority: u8, fire: T) {
        let _none = self.fires.insert((Reverse(priority), self.next_sequence), fire);
        self.next_sequence += 1;
    }

    /// Takes in a fire where there is no room for one more, and gives back what would begin last:
    /// itself, unless one of a lower priority waits.
    pub fn displace(&mut self, priority: u8, fire: T) -> T {
        let last = self.fires.last_entry();
        let Some(last) = last.filter(|last| last.key().0 > Reverse(priority)) else { return fire };
        let displaced = last.remove();
        self.push(priority, fire);
        displaced
    }

    /// The one that begins first.
    pub fn pop(&mut self) -> Option<T> {
        self.fires.pop_first().map(|(_, fire)| fire)
    }

    /// Takes out those that are `condemned`; the others keep their order.
    pub fn withdraw(&mut self, matches: impl Fn(&T) -> bool) -> impl Iterator<Item = T> {
        self.fires.extract_if(.., move |_, fire| matches(fire)).map(|(_, fire)| fire)
    }
}

impl<T> Default for CallerQueue<T> {
    fn default() -> Self {
        Self { fires: BTreeMap::new(), next_sequence: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue_of(fires: &[(u8, &'static str)]) -> CallerQueue<&'static str> {
        let mut line = CallerQueue::default();
        fires.iter().for_each(|&(priority, fire)| line.push(priority, fire));
        line
    }

    fn drained(mut line: CallerQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| line.pop()).collect()
    }

    #[test]
    fn higher_priorities_begin_first_and_equal_ones_in_arrival_order() {
        let line = queue_of(&[(127, "a"), (0, "b"), (255, "c"), (127, "d"), (255, "e"), (0, "f")]);
        assert_eq!(line.len(), 6);
        assert_eq!(drained(line), ["c", "e", "a", "d", "b", "f"]);
    }

    #[test]
    fn a_higher_priority_displaces_the_last_fire_of_the_lowest() {
        let mut line = queue_of(&[(9, "a"), (3, "b"), (3, "c")]);
        assert_eq!(line.displace(3, "d"), "d", "it would be the last itself");
        assert_eq!(line.displace(5, "e"), "c");
        assert_eq!(line.displace(9, "f"), "b");
        assert_eq!(drained(line), ["a", "f", "e"]);
        assert_eq!(CallerQueue::default().displace(255, "g"), "g", "there is no room at all");
    }

    #[test]
    fn withdrawing_fires_keeps_the_order_of_the_others() {
        let mut line = queue_of(&[(1, "a"), (2, "b"), (1, "c"), (2, "d")]);
        let withdrawn: Vec<_> = line.withdraw(|fire| "bc".contains(fire)).collect();
        assert_eq!(withdrawn, ["b", "c"]);
        assert_eq!(drained(line), ["d", "a"]);
    }
}
