//! stub
use crate::model::Timestamp;
use crate::model::timeline::TimelineKey;
use bytes::Bytes;
#[derive(Debug)]
pub struct Wheel;
pub struct Load {
    pub from: TimelineKey,
    pub until: TimelineKey,
    pub bytes_max: usize,
}
impl Wheel {
    pub fn loaded_until(&self) -> TimelineKey {
        todo!()
    }
    pub fn wants(&self, _now: Timestamp) -> Option<Load> {
        todo!()
    }
    pub fn load(&mut self, _e: Vec<(TimelineKey, Bytes)>, _r: TimelineKey) {}
    pub fn insert(&mut self, _k: TimelineKey, _r: Bytes) -> bool {
        false
    }
    pub fn remove(&mut self, _k: TimelineKey) {}
    pub fn take_due(&mut self, _u: TimelineKey, _m: usize, _o: &mut Vec<(TimelineKey, Bytes)>) {}
    pub fn next_due(&self) -> Option<Timestamp> {
        None
    }
    pub fn advance(&mut self, _w: TimelineKey) {}
}
