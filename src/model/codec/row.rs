//! stub
use crate::model::entry::Row;
use bytes::Bytes;
pub fn decode(_b: &Bytes) -> Result<Row, std::fmt::Error> {
    todo!()
}
pub fn encode(_r: &Row, _o: &mut Vec<u8>) {}
