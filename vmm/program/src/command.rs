//! Finds the programs that a shell command or a script starts, as far as its text tells. Words that the shell would expand are left alone.

/// A program that a command starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    /// The program as the command names it.
    pub word: String,
    /// Number of the line in the text, from 1.
    pub line: usize,
    /// True if the shell starts the program before anything else, so that no earlier command can have made the program.
    pub first: bool,
    /// True if a launcher or a command such as `env` starts the program: the word is one of that command's arguments.
    pub argument: bool,
    /// Value of `LD_LIBRARY_PATH` that is written before the program; `None` for none.
    pub library_path: Option<String>,
}

/// A word of a shell command.
#[derive(Clone, Debug)]
struct Word {
    text: String,
    /// True if the shell leaves the word as it is.
    plain: bool,
    line: usize,
}

/// Words that begin a compound command, after which a command begins.
const BEFORE_COMMANDS: &[&str] = &[
    "if", "then", "else", "elif", "while", "until", "do", "!", "time", "{", "exec", "command",
    "builtin",
];
/// Words after which no program's name comes, and commands of the shell itself.
const OWN: &[&str] = &[
    ".", ":", "[", "alias", "bg", "break", "case", "cd", "continue", "declare", "dirs", "done",
    "echo", "esac", "eval", "exit", "export", "false", "fg", "fi", "for", "function", "getopts",
    "hash", "in", "jobs", "kill", "let", "local", "popd", "printf", "pushd", "pwd", "read",
    "readonly", "return", "select", "set", "shift", "source", "test", "times", "trap", "true",
    "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait", "}", "[[", "((",
];
/// Commands that start a program which their arguments name.
const STARTERS: &[&str] = &[
    "env",
    "mpiexec",
    "mpiexec.hydra",
    "mpiexec.mpich",
    "mpiexec.openmpi",
    "mpirun",
    "mpirun.mpich",
    "mpirun.openmpi",
    "nice",
    "nohup",
    "numactl",
    "orterun",
    "setarch",
    "stdbuf",
    "strace",
    "taskset",
    "timeout",
];

/// Returns the programs that a text of shell commands starts.
pub(crate) fn invocations(text: &str) -> Vec<Invocation> {
    let mut found = Vec::new();
    for (number, words) in simple_commands(text).into_iter().enumerate() {
        command(&words, number == 0, &mut found);
    }
    found
}

/// Returns whether a text of shell commands changes the working folder.
pub(crate) fn changes_folder(text: &str) -> bool {
    let commands = simple_commands(text);
    let mut words = commands.iter().flatten();
    words.any(|word| matches!(word.text.as_str(), "cd" | "pushd"))
}

/// Adds the programs that a simple command starts.
fn command(words: &[Word], first: bool, found: &mut Vec<Invocation>) {
    let mut first = first;
    let mut library_path = None;
    let mut rest = words.iter();
    let program = loop {
        let Some(word) = rest.next() else { return };
        if let Some((name, value)) = assignment(&word.text) {
            if name == "LD_LIBRARY_PATH" {
                // A value that the shell expands may name any folder.
                library_path = Some(if word.plain { value } else { "$" }.to_owned());
            }
        } else if BEFORE_COMMANDS.contains(&word.text.as_str()) {
            first &= matches!(word.text.as_str(), "exec" | "time" | "command");
        } else {
            break word;
        }
    };
    // After `exec` and `command`, options may come.
    let name = program.text.as_str();
    if !program.plain || name.is_empty() || name.starts_with('-') || OWN.contains(&name) {
        return;
    }
    let invocation = |word: &Word, first, argument| Invocation {
        word: word.text.clone(),
        line: word.line,
        first,
        argument,
        library_path: library_path.clone(),
    };
    found.push(invocation(program, first, false));
    let name = program.text.rsplit('/').next().unwrap_or_default();
    if STARTERS.contains(&name) {
        let names =
            rest.filter(|word| word.plain && !word.text.is_empty() && !word.text.starts_with('-'));
        found.extend(names.map(|word| invocation(word, false, true)));
    }
}

/// Splits `NAME=value`. Returns `None` for another word.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, value))
}

/// Splits a text into simple commands, each a list of words. Redirections are left out. A here-document ends the reading.
fn simple_commands(text: &str) -> Vec<Vec<Word>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<Word> = None;
    let mut line = 1;
    let mut redirected = false;
    let mut chars = text.chars().peekable();
    let end = |word: &mut Option<Word>, redirected: &mut bool, commands: &mut Vec<Vec<Word>>| {
        if let Some(word) = word.take()
            && !std::mem::take(redirected)
            && let Some(words) = commands.last_mut()
        {
            words.push(word);
        }
    };
    while let Some(c) = chars.next() {
        let now = line;
        line += usize::from(c == '\n');
        match c {
            '\\' if chars.peek() == Some(&'\n') => {
                chars.next();
                line += 1;
            }
            ' ' | '\t' => end(&mut word, &mut redirected, &mut commands),
            '#' if word.is_none() => while chars.next_if(|&c| c != '\n').is_some() {},
            '\n' | ';' | '&' | '|' | '(' | ')' => {
                end(&mut word, &mut redirected, &mut commands);
                redirected = false;
                if commands.last().is_some_and(|words| !words.is_empty()) {
                    commands.push(Vec::new());
                }
            }
            '<' | '>' => {
                // The digits before it are a file's number.
                if word
                    .as_ref()
                    .is_some_and(|word| word.text.chars().all(|c| c.is_ascii_digit()))
                {
                    word = None;
                }
                end(&mut word, &mut redirected, &mut commands);
                if c == '<' && chars.peek() == Some(&'<') {
                    break;
                }
                while chars.next_if(|&c| matches!(c, '>' | '&' | '|')).is_some() {}
                redirected = true;
            }
            _ => {
                let current = word.get_or_insert_with(|| Word {
                    text: String::new(),
                    plain: true,
                    line: now,
                });
                match c {
                    '\'' => current.text.extend(chars.by_ref().take_while(|&c| {
                        line += usize::from(c == '\n');
                        c != '\''
                    })),
                    '"' => {
                        while let Some(c) = chars.next().filter(|&c| c != '"') {
                            line += usize::from(c == '\n');
                            current.plain &= !matches!(c, '$' | '`' | '\\');
                            current.text.push(c);
                            if c == '\\' {
                                current.text.extend(chars.next());
                            }
                        }
                    }
                    '\\' => current.text.extend(chars.next()),
                    _ => {
                        let tilde = c == '~' && current.text.is_empty();
                        current.plain &= !tilde && !matches!(c, '$' | '`' | '*' | '?' | '[' | '{');
                        current.text.push(c);
                    }
                }
            }
        }
    }
    end(&mut word, &mut redirected, &mut commands);
    commands.retain(|words| !words.is_empty());
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, bool)> {
        let found = invocations(text).into_iter();
        found.map(|found| (found.word, found.first)).collect()
    }

    #[test]
    fn programs_of_commands() {
        let cases: &[(&str, &[(&str, bool)])] = &[
            ("hpcc", &[("hpcc", true)]),
            (
                "OMP_NUM_THREADS=2 ./app in.dat > out 2>&1",
                &[("./app", true)],
            ),
            ("cd sub && ./app", &[("./app", false)]),
            (
                "make; './my app' x | tee log",
                &[("make", true), ("./my app", false), ("tee", false)],
            ),
            ("exec ./app", &[("./app", true)]),
            ("if [ -e x ]; then ./app; fi", &[("./app", false)]),
            ("$HOME/app; `which app`; ~/app; ./a*", &[]),
            (
                "env A=1 ./app arg",
                &[
                    ("env", true),
                    ("A=1", false),
                    ("./app", false),
                    ("arg", false),
                ],
            ),
            ("for i in 1 2; do ./app $i; done", &[("./app", false)]),
            ("cat <<X\n./no\nX\n", &[("cat", true)]),
            ("./a \\\n  b # ./c\n./d", &[("./a", true), ("./d", false)]),
            ("", &[]),
            ("'", &[]),
            ("\"", &[]),
        ];
        for (text, expected) in cases {
            let expected: Vec<(String, bool)> = expected
                .iter()
                .map(|(word, first)| (word.to_string(), *first))
                .collect();
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn lines_and_library_paths() {
        let found =
            invocations("#!/bin/sh\n\nLD_LIBRARY_PATH=/job/lib ./a\nLD_LIBRARY_PATH=$X ./b\n");
        let found: Vec<_> = found
            .iter()
            .map(|f| (f.line, f.library_path.as_deref()))
            .collect();
        assert_eq!(found, [(3, Some("/job/lib")), (4, Some("$"))]);
    }
}
