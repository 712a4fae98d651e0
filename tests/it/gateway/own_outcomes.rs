//! Whose outcome a request gets, and what its owner recognises a repetition by.

use orloj::model::outcome::{Outcome, OutcomeKind};
use orloj::model::text::Text;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{RunningGateway, read};
use crate::kafka_server;

/// A producer registers the same trigger at the same time, and its record is answered first.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_item_returns_the_outcome_of_its_own_record() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let accepted = |generation| OutcomeKind::Accepted {
        generation,
        fire_at: 1_900_000_000_000,
        replaced: None,
    };
    let owner = gateway.play_owner_of_many(move |seen| {
        let ours = Outcome { answers: Some(5_000), ..seen.outcome(accepted(5_000)) };
        let others = ["of another request", ""].map(|request| Outcome {
            answers: Some(4_000),
            request: Some(request).filter(|request| !request.is_empty()).map(Text::from),
            ..seen.outcome(OutcomeKind::Taken { generation: 4_000 })
        });
        others.into_iter().chain([ours]).collect()
    });
    let body = json!({"triggers": [{"triggerId": "tea", "topic": "t", "delaySeconds": 60}]});
    let answer = gateway.call(Method::POST, "/v1/triggers:batch", Some(body)).await;
    let (status, _, answer) = read(answer).await;
    owner.join().unwrap();
    let item = &answer["items"][0];
    assert_eq!((status, &item["outcome"]), (200, &json!("ACCEPTED")), "{answer}");
    assert_eq!(item["generation"], json!(5_000));
}

/// The owner recognises a repetition by the key of the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_with_an_idempotency_key_is_written_with_the_same_key() {
    let gateway = RunningGateway::start(kafka_server::shared(), &[]).await;
    let key_of_record = async |path: &str, key: &str, body: Option<Value>| {
        let owner = gateway.play_owner(|_| OutcomeKind::Called { generation: 7, occurrence: 4 });
        let request = gateway.client.post(format!("{}{path}", gateway.address));
        let request = request.header("idempotency-key", key);
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
        let seen = owner.join().unwrap();
        let header = seen.headers.iter().find(|(name, _)| name == "orloj-idempotency-key");
        (header.expect("the record has a key").1.clone(), seen.key)
    };
    let fire_now = "/v1/triggers/tea:fireNow";
    let first = key_of_record(fire_now, "k-1", None).await;
    assert_eq!(key_of_record(fire_now, "k-1", None).await, first);
    assert_ne!(key_of_record(fire_now, "k-2", None).await.0, first.0);
    assert_ne!(key_of_record("/v1/triggers/milk:fireNow", "k-1", None).await.0, first.0);

    let batch = |topic: &str| Some(json!({"triggers": [{"topic": topic, "delaySeconds": 60}]}));
    let first = key_of_record("/v1/triggers:batch", "k-1", batch("t")).await;
    assert_eq!(key_of_record("/v1/triggers:batch", "k-1", batch("t")).await, first);
    let other = key_of_record("/v1/triggers:batch", "k-1", batch("u")).await;
    assert!(other.0 != first.0 && other.1 != first.1, "another body is another request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_returns_where_to_look() {
    let gateway =
        RunningGateway::start(kafka_server::shared(), &["gateway.answer_timeout=1s"]).await;
    let prefix = &gateway.settings.topics.prefix;
    let (status, _, answer) = read(gateway.cancel("tea").await).await;
    assert_eq!((status, &answer["triggerId"]), (202, &json!("tea")));
    let detail = answer["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("{prefix}.triggers[")), "{detail}");
    assert!(detail.contains(&format!("{prefix}.outcomes with the key tea")), "{detail}");
}
