//! Whether this client may write to a topic.
//!
//! Invariant: an answer says what the broker's rules are now. A transaction with a record for a
//! topic that may not be written is refused as a whole, and the broker does not name the topic.
#![allow(unsafe_code, reason = "rdkafka has no binding for the description of topics")]

use std::ffi::CString;
use std::ptr::NonNull;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::bindings as c;
use rdkafka::client::Client;

use super::timeout_ms;

/// Destroys what librdkafka has made.
struct Owned<T> {
    raw: NonNull<T>,
    destroy: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    fn new(raw: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { raw, destroy })
    }

    fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once, by the function that belongs to it.
        unsafe { (self.destroy)(self.raw.as_ptr()) }
    }
}

/// Whether `client` may write to `topic`; `None` if the broker did not say so within `timeout`. A
/// broker without rules allows everything. `broker`: which one is asked.
pub(super) fn may_write<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    broker: i32,
    timeout: Duration,
) -> Option<bool> {
    let (client, timeout_ms) = (client.native_ptr(), timeout_ms(timeout));
    let topic = CString::new(topic).ok()?;
    let mut names = [topic.as_ptr()];
    // SAFETY: the client lives through this call. Each object is checked for null and
    // destroyed when it goes out of scope, the event before the queue. The name lives until the
    // collection is made, which copies it. The description belongs to the event.
    unsafe {
        let queue = Owned::new(c::rd_kafka_queue_new(client), c::rd_kafka_queue_destroy)?;
        let wanted = Owned::new(
            c::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()),
            c::rd_kafka_TopicCollection_destroy,
        )?;
        let options = Owned::new(
            c::rd_kafka_AdminOptions_new(
                client,
                c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            c::rd_kafka_AdminOptions_destroy,
        )?;
        set_options(options.raw(), broker, timeout_ms)?;
        c::rd_kafka_DescribeTopics(client, wanted.raw(), options.raw(), queue.raw());
        let event =
            Owned::new(c::rd_kafka_queue_poll(queue.raw(), timeout_ms), c::rd_kafka_event_destroy)?;
        let result = c::rd_kafka_event_DescribeTopics_result(event.raw());
        if result.is_null() {
            return None;
        }
        let mut count = 0;
        let found = c::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if found.is_null() || count != 1 {
            return None;
        }
        let operations = c::rd_kafka_TopicDescription_authorized_operations(*found, &raw mut count);
        if operations.is_null() || count == 0 {
            return None;
        }
        let operations = std::slice::from_raw_parts(operations, count);
        let write = c::rd_kafka_AclOperation_t::RD_KAFKA_ACL_OPERATION_WRITE;
        Some(operations.contains(&write))
    }
}

/// `None` if an option is refused.
///
/// # Safety
///
/// `options` must be valid.
unsafe fn set_options(
    options: *mut c::rd_kafka_AdminOptions_t,
    broker: i32,
    timeout_ms: i32,
) -> Option<()> {
    // SAFETY: the options are valid; a null text means that no reason is wanted.
    unsafe {
        let refused =
            c::rd_kafka_AdminOptions_set_include_authorized_operations(options, i32::from(true));
        if !refused.is_null() {
            c::rd_kafka_error_destroy(refused);
            return None;
        }
        let no_text = std::ptr::null_mut();
        let ok = c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
        let set = [
            c::rd_kafka_AdminOptions_set_request_timeout(options, timeout_ms, no_text, 0),
            c::rd_kafka_AdminOptions_set_broker(options, broker, no_text, 0),
        ];
        (set == [ok, ok]).then_some(())
    }
}
