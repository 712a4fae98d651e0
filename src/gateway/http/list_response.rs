//! Lists: the page that a query requests, and the response with it.
//!
//! Invariant: all lists have one form, and a schema of their own name: `items`, `nextPageToken` for
//! those with pages, and `asOf`.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::json;
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::parameters::invalid_parameter;
use super::problem::Problem;
use crate::model::time::format_time;
use crate::view::{self, Freshness, Listing, Page, ViewError};

/// What a list has.
pub(crate) trait ListItem: ToSchema {
    /// The name of the list's schema.
    const LIST_NAME: &'static str;
    /// Whether the list has pages: one without them is always complete.
    const HAS_PAGES: bool = true;
}

/// A list, or one page of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListResponse<T> {
    items: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    as_of: String,
}

impl<T> ListResponse<T> {
    /// A page of the view.
    pub(crate) fn page<V: Into<T>>(listing: Listing<V>, freshness: &Freshness) -> Self {
        let next_page_token = listing.next.map(|token| token.to_string());
        Self { next_page_token, ..Self::all(listing.items, freshness) }
    }

    /// A complete list.
    pub(crate) fn all<V: Into<T>>(items: Vec<V>, freshness: &Freshness) -> Self {
        let items = items.into_iter().map(Into::into).collect();
        Self { items, next_page_token: None, as_of: format_time(freshness.as_of) }
    }
}

impl<T: ListItem> PartialSchema for ListResponse<T> {
    fn schema() -> RefOr<Schema> {
        let item = RefOr::<Schema>::Ref(Ref::from_schema_name(T::name()));
        let date_time = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        let as_of = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .format(Some(date_time))
            .description(Some("The list is complete up to then."));
        let token = ObjectBuilder::new()
            .schema_type(SchemaType::Array(vec![Type::String, Type::Null]))
            .description(Some(
                "The token of the next page; absent at the end. A short page that has one is not \
                 the last.",
            ));
        let mut list = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::Object))
            .property("items", ArrayBuilder::new().items(item))
            .required("items");
        if T::HAS_PAGES {
            list = list.property("nextPageToken", token);
        }
        list.property("asOf", as_of).required("asOf").into()
    }
}

impl<T: ListItem> ToSchema for ListResponse<T> {
    fn name() -> Cow<'static, str> {
        T::LIST_NAME.into()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(schemas);
    }
}

/// The page that a query requests.
pub(crate) fn read_page(size: Option<u32>, token: Option<&str>) -> Result<Page, Problem> {
    let named = |name: &str, reason: String| {
        invalid_parameter(&format!("{name}: {reason}")).with("parameter", json!(name))
    };
    if let Some(size) = size.filter(|size| !(1..=view::PAGE_MAX).contains(size)) {
        return Err(named("page_size", format!("write 1 to {}, not {size}", view::PAGE_MAX)));
    }
    let token = token.map(str::parse).transpose();
    let token = token.map_err(|error: view::InvalidPageToken| ViewError::from(error))?;
    Ok(Page { size: size.unwrap_or(view::PAGE_DEFAULT), token })
}
