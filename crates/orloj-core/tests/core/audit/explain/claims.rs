//! Which record is of which request: each record is of one request, and a request has one record at
//! most.
//!
//! Invariant: an assignment is found if there is one: what cannot be assigned has no explanation.

/// The records, by their place in the log, that a request may have written.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim {
    /// Its answer says that it has written one of them.
    pub(super) must: bool,
    pub(super) records: Vec<usize>,
}

/// What is left when as many records as possible are assigned.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unassigned {
    /// Requests without the record that their answers speak of.
    pub(super) requests: Vec<usize>,
    /// Records that no request has written.
    pub(super) records: Vec<usize>,
}

/// Assigns the records of a log that has so many.
pub(super) fn assign(claims: &[Claim], records: usize) -> Unassigned {
    let mut writers = vec![Vec::new(); records];
    for (request, claim) in claims.iter().enumerate() {
        claim.records.iter().for_each(|record| writers[*record].push(request));
    }
    let mut matching =
        Matching { record_of: vec![None; claims.len()], request_of: vec![None; records] };
    let mut left = Unassigned::default();
    for request in (0..claims.len()).filter(|request| claims[*request].must) {
        let edges = |request: usize| &claims[request].records[..];
        if !matching.add_request(request, &edges, &mut vec![false; records]) {
            left.requests.push(request);
        }
    }
    // A request that has a record keeps one.
    for record in 0..records {
        if matching.request_of[record].is_none()
            && !matching.add_record(record, &writers, &mut vec![false; claims.len()])
        {
            left.records.push(record);
        }
    }
    left
}

struct Matching {
    record_of: Vec<Option<usize>>,
    request_of: Vec<Option<usize>>,
}

impl Matching {
    fn add_request<'a>(
        &mut self,
        request: usize,
        edges: &dyn Fn(usize) -> &'a [usize],
        visited: &mut [bool],
    ) -> bool {
        for &record in edges(request) {
            if std::mem::replace(&mut visited[record], true) {
                continue;
            }
            let other = self.request_of[record];
            if other.is_none_or(|other| self.add_request(other, edges, visited)) {
                self.set(request, record);
                return true;
            }
        }
        false
    }

    fn add_record(&mut self, record: usize, writers: &[Vec<usize>], visited: &mut [bool]) -> bool {
        for &request in &writers[record] {
            if std::mem::replace(&mut visited[request], true) {
                continue;
            }
            let other = self.record_of[request];
            if other.is_none_or(|other| self.add_record(other, writers, visited)) {
                self.set(request, record);
                return true;
            }
        }
        false
    }

    fn set(&mut self, request: usize, record: usize) {
        (self.record_of[request], self.request_of[record]) = (Some(record), Some(request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_assigned_if_there_is_a_way() {
        let claim = |must, records: &[usize]| Claim { must, records: records.to_vec() };
        let claims = [claim(true, &[0, 1]), claim(true, &[0]), claim(false, &[1, 2])];
        assert_eq!(assign(&claims, 3), Unassigned::default());
        let left = Unassigned { requests: vec![1], records: vec![] };
        assert_eq!(assign(&[claim(true, &[0]), claim(true, &[0])], 1), left, "one record");
        let left = Unassigned { requests: vec![], records: vec![1] };
        assert_eq!(assign(&[claim(false, &[0, 1])], 2), left, "one request");
        assert_eq!(assign(&[claim(false, &[0])], 1), Unassigned::default());
    }
}
