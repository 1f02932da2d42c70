//! Shapes that types alone do not say: how many there may be of something, and that none is there twice.

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{AnyOfBuilder, ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Argv(pub Vec<String>);

/// Up to four places in a submission, each once.
#[derive(Debug)]
pub struct Places;

/// From one to three places in a submission, each once.
#[derive(Debug)]
pub struct Levels;

/// What shares are worth, by `LEVEL:VALUE`.
#[derive(Debug)]
pub struct Weights;

/// What must stand at places of a submission.
#[derive(Debug)]
pub struct When;

/// How many values a test may name, and how many weights an action can have.
const MANY: usize = 1_000;

fn places(min: Option<usize>, max: usize) -> ArrayBuilder {
    let places = ArrayBuilder::new().items(String::schema());
    places
        .unique_items(true)
        .min_items(min)
        .max_items(Some(max))
}

impl PartialSchema for Places {
    fn schema() -> RefOr<Schema> {
        places(None, 4)
            .description(Some("Places in a submission."))
            .into()
    }
}

impl PartialSchema for Levels {
    fn schema() -> RefOr<Schema> {
        places(Some(1), 3)
            .description(Some("Places in a submission."))
            .into()
    }
}

impl PartialSchema for Weights {
    fn schema() -> RefOr<Schema> {
        let weight = ObjectBuilder::new().schema_type(Type::Integer);
        let weight = weight.minimum(Some(1)).maximum(Some(1_000));
        let weights = ObjectBuilder::new().additional_properties(Some(weight));
        let weights = weights.max_properties(Some(MANY));
        weights
            .description(Some("Weights by what has them."))
            .into()
    }
}

impl PartialSchema for When {
    fn schema() -> RefOr<Schema> {
        let one = [
            Type::String,
            Type::Number,
            Type::Boolean,
            Type::Null,
            Type::Object,
        ];
        let one = ObjectBuilder::new().schema_type(SchemaType::Array(one.into()));
        let one_of = ArrayBuilder::new().min_items(Some(1)).max_items(Some(MANY));
        let test = Schema::AnyOf(AnyOfBuilder::new().item(one).item(one_of).build());
        let when = ObjectBuilder::new().additional_properties(Some(test));
        let when = when.min_properties(Some(1)).max_properties(Some(16));
        when.description(Some("Tests by place.")).into()
    }
}

impl PartialSchema for Argv {
    fn schema() -> RefOr<Schema> {
        let argv = ArrayBuilder::new()
            .items(String::schema())
            .min_items(Some(1));
        argv.into()
    }
}

impl ToSchema for Argv {}
impl ToSchema for Places {}
impl ToSchema for Levels {}
impl ToSchema for Weights {}
impl ToSchema for When {}
