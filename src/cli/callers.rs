//! `orloj callers`: new keys and secrets, shown once.
//!
//! Invariant: a secret is written to standard output and nowhere else: no log, no file.

use clap::{Args, Subcommand};

use super::CliError;
use crate::callers::{KeyHash, NewSecret, new_key};

/// What can be made for a caller.
#[derive(Debug, Subcommand)]
pub(super) enum CallersCommand {
    /// Make an API key, and the hash of it that goes into callers.toml.
    NewKey,
    /// Make a signing secret for callbacks.
    NewSecret(NewSecretArguments),
}

/// Which kind of secret.
#[derive(Debug, Args)]
pub(super) struct NewSecretArguments {
    /// A pair of which the receiver gets only the public key.
    #[arg(long)]
    ed25519: bool,
}

impl CallersCommand {
    /// Makes it and prints it.
    pub(super) fn run(&self) -> Result<(), CliError> {
        match self {
            Self::NewKey => {
                let key = new_key().map_err(random_failed)?;
                println!("# For the caller; it is not shown again:\n{key}");
                println!("# For callers.toml:\nkeys = [\"{}\"]", KeyHash::of(&key));
            }
            Self::NewSecret(arguments) => {
                let make = if arguments.ed25519 { NewSecret::pair } else { NewSecret::shared };
                let NewSecret { secret, public } = make().map_err(random_failed)?;
                let whose = if public.is_some() { "us" } else { "us and the receiver" };
                println!("# For {whose}; it is not shown again:\n{secret}");
                if let Some(public) = public {
                    println!("# For the receiver:\n{public}");
                }
                println!("# For callers.toml:\nsecrets = [{{ secret = \"file:PATH\" }}]");
            }
        }
        Ok(())
    }
}

fn random_failed(_: aws_lc_rs::error::Unspecified) -> CliError {
    CliError::System(std::io::Error::other("the system gives no random numbers"))
}
