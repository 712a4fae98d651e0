//! The waiting fires of one caller, in the order in which they start.
//!
//! Invariant: pure. Higher priorities start first, equal ones in the order of arrival. Memory is
//! proportional to the fires that wait now, whatever their priorities.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Fires that wait.
#[derive(Debug)]
pub struct CallerQueue<T> {
    /// By priority, the higher first, and by order of arrival.
    fires: BTreeMap<(Reverse<u8>, u64), T>,
    /// The number of arrivals so far.
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

    /// Adds a fire of that priority, 0 to 255.
    pub fn push(&mut self, priority: u8, fire: T) {
        let _none = self.fires.insert((Reverse(priority), self.next_sequence), fire);
        self.next_sequence += 1;
    }

    /// Adds a fire when there is no room for one more, and returns the fire that would start last:
    /// the same one, unless one of a lower priority waits.
    pub fn displace(&mut self, priority: u8, fire: T) -> T {
        let last = self.fires.last_entry();
        let Some(last) = last.filter(|last| last.key().0 > Reverse(priority)) else { return fire };
        let displaced = last.remove();
        self.push(priority, fire);
        displaced
    }

    /// The fire that starts first.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        self.fires.first_key_value().map(|(_, fire)| fire)
    }

    /// Removes and returns the fire that starts first.
    pub fn pop(&mut self) -> Option<T> {
        self.fires.pop_first().map(|(_, fire)| fire)
    }

    /// Removes the fires for which `matches` holds; the others keep their order.
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
        let mut queue = CallerQueue::default();
        fires.iter().for_each(|&(priority, fire)| queue.push(priority, fire));
        queue
    }

    fn drained(mut queue: CallerQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn higher_priorities_start_first_and_equal_ones_in_arrival_order() {
        let queue = queue_of(&[(127, "a"), (0, "b"), (255, "c"), (127, "d"), (255, "e"), (0, "f")]);
        assert_eq!(queue.len(), 6);
        assert_eq!(drained(queue), ["c", "e", "a", "d", "b", "f"]);
    }

    #[test]
    fn a_higher_priority_displaces_the_last_fire_of_the_lowest() {
        let mut queue = queue_of(&[(9, "a"), (3, "b"), (3, "c")]);
        assert_eq!(queue.displace(3, "d"), "d", "it would be the last itself");
        assert_eq!(queue.displace(5, "e"), "c");
        assert_eq!(queue.displace(9, "f"), "b");
        assert_eq!(drained(queue), ["a", "f", "e"]);
        assert_eq!(CallerQueue::default().displace(255, "g"), "g", "there is no room at all");
    }

    #[test]
    fn withdrawing_fires_keeps_the_order_of_the_others() {
        let mut queue = queue_of(&[(1, "a"), (2, "b"), (1, "c"), (2, "d")]);
        let withdrawn: Vec<_> = queue.withdraw(|fire| "bc".contains(fire)).collect();
        assert_eq!(withdrawn, ["b", "c"]);
        assert_eq!(drained(queue), ["d", "a"]);
    }
}
