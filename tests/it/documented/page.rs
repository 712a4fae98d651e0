//! The fenced blocks of a page, and what is to be done with each.
//!
//! Invariant: a command is written in a block of `sh`. Such a block is run, unless its info string
//! says why it cannot be: there is no third way.
//!
//! ````text
//! ```sh                     is run, after the blocks before it
//! ```sh norun=it is long    is not run; everything after the `=` is the reason
//! ```sh stopped             is run while no role runs, again and again until it succeeds
//! ```json file=jobs.json    is the file of this name for the commands of the page
//! ```json                   right behind a request, and with `// 201` at its beginning: the answer
//! ````

/// What a shell's commands are called in other conventions.
const OTHER_SHELLS: [&str; 5] = ["bash", "shell", "console", "shell-session", "zsh"];

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The line of its text that comes first, counted from 1.
    pub(super) line: usize,
    pub(super) language: String,
    /// What follows the language in the info string.
    pub(super) info: String,
    pub(super) text: String,
}

/// What the test does with a block of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockMode<'a> {
    Run,
    RunStopped,
    NotRun { reason: &'a str },
}

impl Block {
    /// Whether it holds commands; an error says what is wrong with the info string.
    pub(super) fn mode(&self) -> Result<Option<BlockMode<'_>>, String> {
        let wrong = |why: &str| Err(format!("line {}: {why}", self.line));
        if OTHER_SHELLS.contains(&self.language.as_str()) {
            return wrong("call a block of commands `sh`, so that it is run");
        }
        if self.language.is_empty() {
            return wrong("say what the block is: `sh` if it holds commands, else `text`");
        }
        if self.language != "sh" {
            return Ok(None);
        }
        match (self.info.as_str(), self.info.strip_prefix("norun=")) {
            ("", _) => Ok(Some(BlockMode::Run)),
            ("stopped", _) => Ok(Some(BlockMode::RunStopped)),
            (_, Some(reason)) if !reason.trim().is_empty() => {
                Ok(Some(BlockMode::NotRun { reason }))
            }
            (_, Some(_)) => wrong("norun= needs a reason"),
            (info, None) => wrong(&format!("`{info}` means nothing: give `norun=` or `stopped`")),
        }
    }

    /// The name of the file that it is.
    pub(super) fn file(&self) -> Option<&str> {
        self.info.strip_prefix("file=")
    }

    /// Whether it is meant as the answer to a request: JSON below a comment.
    pub(super) fn looks_like_answer(&self) -> bool {
        self.language == "json" && self.text.starts_with("//")
    }

    /// Status and body, if it is the documented answer to a request.
    pub(super) fn answer(&self) -> Option<(u16, &str)> {
        let (status, body) = self.text.strip_prefix("// ")?.split_once('\n')?;
        (self.language == "json").then_some((status.trim().parse().ok()?, body))
    }
}

/// All fenced blocks of a page, in their order.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<String> = None;
    for (at, line) in page.lines().enumerate() {
        let (bare, ticks) =
            (line.trim_start(), line.trim_start().bytes().take_while(|b| *b == b'`'));
        let ticks = ticks.count();
        match &open {
            Some(fence) if bare.trim_end() == fence => open = None,
            Some(_) => {
                let block = blocks.last_mut().expect("a block is open");
                block.text.push_str(line);
                block.text.push('\n');
            }
            None if ticks >= 3 => {
                open = Some(bare[..ticks].to_owned());
                let info = bare[ticks..].trim();
                let (language, info) = info.split_once(' ').unwrap_or((info, ""));
                let (language, info) = (language.to_owned(), info.trim().to_owned());
                blocks.push(Block { line: at + 2, language, info, text: String::new() });
            }
            None => {}
        }
    }
    blocks
}

#[test]
fn each_block_of_commands_is_run_or_says_why_not() {
    let page = "Text.\n```sh\norloj dev\n```\n```sh norun=it is long\nmake bench\n```\n\
                ```json file=jobs.json\n[1]\n```\n  ```sh stopped\nkafka-topics.sh\n  ```\n\
                ````text\n```\n````\n```json\n// 201\n{\"a\": 1}\n```\n";
    let blocks = blocks(page);
    let modes: Vec<_> = blocks.iter().map(|block| block.mode().unwrap()).collect();
    let not_run = BlockMode::NotRun { reason: "it is long" };
    assert_eq!(modes[..2], [Some(BlockMode::Run), Some(not_run)]);
    assert_eq!(modes[2..], [None, Some(BlockMode::RunStopped), None, None]);
    assert_eq!((blocks[0].line, blocks[0].text.as_str()), (3, "orloj dev\n"));
    assert_eq!((blocks[2].file(), blocks[2].answer()), (Some("jobs.json"), None));
    assert_eq!(blocks[4].text, "```\n");
    assert_eq!(blocks[5].answer(), Some((201, "{\"a\": 1}\n")));
}

#[test]
fn a_block_that_says_neither_is_an_error() {
    for info in ["sh norun=", "sh norun= ", "sh skip", "bash", "console", ""] {
        let blocks = blocks(&format!("```{info}\nls\n```\n"));
        assert!(blocks[0].mode().is_err(), "{info}");
    }
}
