//! Text from an argument, a file, or standard input.

use std::path::Path;

use super::CliError;

/// The text of the file called `argument`, or of standard input for `-`; `argument` itself if there
/// is no such file.
pub(super) fn read_text(argument: &str) -> Result<String, CliError> {
    match argument {
        "-" => Ok(std::io::read_to_string(std::io::stdin())?),
        path if Path::new(path).is_file() => Ok(std::fs::read_to_string(path)?),
        text => Ok(text.to_owned()),
    }
}

/// The bytes of the file at `path`, or of standard input for `-`.
pub(super) fn read_file(option: &str, path: &Path) -> Result<Vec<u8>, CliError> {
    let read = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin()).map(String::into_bytes)
    } else {
        std::fs::read(path)
    };
    read.map_err(|error| {
        CliError::Usage(format!("cannot read {option} {}: {error}", path.display()))
    })
}
