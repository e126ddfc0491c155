//! Syntax of a line: `function:begin:arguments:end`, with times in microseconds.
//!
//! liballprof writes the arguments in the order of MPI's C interface. An argument is a number (of a pointer, its address), a datatype
//! `id,size,extent`, a communicator `handle,rank,size`, or, for counts and displacements of each rank, an address and then a list.

use nodescope_hypercall::{Class, Function};

use crate::import::function_named;

/// A communicator as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Communicator {
    /// The communicator's handle in the traced process.
    pub(super) handle: u64,
    /// Rank of the caller in the communicator.
    pub(super) rank: u32,
    /// Number of ranks.
    pub(super) size: u32,
}

/// Arguments of a call. What the function has no argument for is 0 or `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    /// Bytes sent and size of the receive buffer.
    pub(super) send_bytes: u64,
    pub(super) receive_bytes: u64,
    /// Bytes by rank, if the trace has the counts.
    pub(super) send_bytes_to: Vec<u64>,
    pub(super) receive_bytes_from: Vec<u64>,
    /// True if the function has counts by rank, and the trace has none.
    pub(super) lacks_counts: bool,
    pub(super) in_place: bool,
    pub(super) destination: i64,
    pub(super) source: i64,
    pub(super) send_tag: i64,
    pub(super) receive_tag: i64,
    pub(super) root: i64,
    pub(super) color: i64,
    pub(super) key: i64,
    pub(super) communicator: Option<Communicator>,
    /// Address of the request, or of the first of `requests`.
    pub(super) request: u64,
    pub(super) requests: u64,
}

/// A line of a trace.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The function; `None` for `MPI_Comm_rank` and `MPI_Comm_size`, which only show a communicator.
    pub(super) function: Option<Function>,
    /// Begin and end in microseconds; `None` where the tracer could not read the clock.
    pub(super) begin: Option<f64>,
    pub(super) end: Option<f64>,
    pub(super) arguments: Arguments,
}

/// A line that is no call that the import uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Other {
    /// A call of another function.
    Function(String),
    /// Wrong syntax, in words.
    Wrong(String),
}

/// Returns the kinds of a function's arguments, a letter each, in the order of MPI's C interface; `None` for functions that are not used.
///
/// | letter | argument | letter | argument |
/// |---|---|---|---|
/// | `p` | not used | `b` | send buffer |
/// | `n`, `t` | count and datatype sent | `m`, `u` | count and datatype received |
/// | `N`, `M` | counts by rank, sent and received | `D` | displacements by rank |
/// | `d`, `g` | destination and tag | `s`, `h` | source and tag |
/// | `c` | communicator | `x` | root |
/// | `r` | a request, or the first of several | `q` | number of requests |
/// | `k`, `y` | color and key | | |
fn kinds(function: Function) -> Option<&'static str> {
    use Function::*;
    Some(match function.blocking() {
        Init | Finalize => "",
        Send | Bsend | Ssend | Rsend => "pntdgc",
        Recv => "pmushc",
        Sendrecv => "pntdgpmushcp",
        SendrecvReplace => "pntdgshcp",
        Wait => "rp",
        Waitall => "qrp",
        Waitany => "qrpp",
        Waitsome => "qrppp",
        Test => "rpp",
        Testall => "qrpp",
        Testany | Testsome => "qrppp",
        RequestFree | Start => "r",
        Startall => "qr",
        Barrier => "c",
        Bcast => "pntxc",
        Reduce => "bpntpxc",
        Allreduce | Scan | Exscan | ReduceScatterBlock => "bpntpc",
        ReduceScatter => "bpMupc",
        Gather | Scatter => "bntpmuxc",
        Allgather | Alltoall => "bntpmuc",
        Gatherv => "bntpMDuxc",
        Scatterv => "bNDtpmuxc",
        Allgatherv => "bntpMDuc",
        Alltoallv => "bNDtpMDuc",
        CommSplit => "ckyp",
        CommDup => "cp",
        CartCreate => "cppppp",
        _ => return None,
    })
}

/// Addresses that stand for `MPI_IN_PLACE` in C, of Open MPI and MPICH.
const IN_PLACE: [&str; 2] = ["1", "18446744073709551615"];

/// Parses a line that is no comment and not empty.
pub(super) fn parse(line: &str) -> Result<Call, Other> {
    let wrong = |what: &str| Other::Wrong(what.to_owned());
    let mut fields = line.split(':');
    let name = fields.next().unwrap_or_default();
    let named = name.strip_prefix("MPI_").filter(|rest| !rest.is_empty());
    if named.is_none() {
        return Err(wrong("is no call of MPI, such as `MPI_Send:time:…:time`"));
    }
    let function = function_named(name);
    let kinds = match (function, name) {
        (None, "MPI_Comm_rank" | "MPI_Comm_size") => Some("cp"),
        (function, _) => function.and_then(kinds),
    };
    let Some(kinds) = kinds else {
        return Err(Other::Function(name.to_owned()));
    };
    let fields: Vec<&str> = fields.collect();
    let [begin, arguments @ .., end] = &fields[..] else {
        return Err(wrong("is cut: it lacks its times"));
    };
    let begin = time(begin)?;
    let end = time(end)?;
    if matches!(
        function,
        Some(Function::Init | Function::InitThread | Function::Finalize)
    ) {
        return Ok(Call {
            function,
            begin,
            end,
            arguments: Arguments::default(),
        });
    }
    let mut kinds: Vec<u8> = kinds.bytes().collect();
    match function.map(Function::class) {
        // A blocking receive has a status, and what starts has a request.
        Some(Class::Receive) => kinds.push(b'p'),
        Some(
            Class::StartSend | Class::StartReceive | Class::StartCollective | Class::Persistent,
        ) if !matches!(function, Some(Function::Start | Function::Startall)) => kinds.push(b'r'),
        _ => {}
    }
    let lists = kinds
        .iter()
        .filter(|kind| kind.is_ascii_uppercase())
        .count();
    // Where counts are arrays in the tracer's header file, it writes only their address.
    let listed = match arguments.len().checked_sub(kinds.len()) {
        Some(0) => false,
        Some(more) if more == lists => true,
        _ => {
            let expected = kinds.len() + lists;
            return Err(Other::Wrong(format!(
                "{name} has {} arguments and should have {expected}: the line is cut or of an unknown release",
                arguments.len()
            )));
        }
    };
    let mut parser = Parser::default();
    let mut rest = arguments.iter();
    for kind in kinds {
        let field = rest.next().copied().unwrap_or_default();
        let list = match kind.is_ascii_uppercase() && listed {
            true => rest.next().copied(),
            false => None,
        };
        parser.argument(kind, field, list)?;
    }
    Ok(Call {
        function,
        begin,
        end,
        arguments: parser.finish(function)?,
    })
}

fn time(field: &str) -> Result<Option<f64>, Other> {
    if field == "-" {
        return Ok(None);
    }
    let time: Option<f64> = field.parse().ok();
    // Numbers above 2^53 are not exact, and no clock in microseconds shows them.
    match time.filter(|time| (0.0..9e15).contains(time)) {
        Some(time) => Ok(Some(time)),
        None => Err(Other::Wrong(format!(
            "{field:?} is no time in microseconds"
        ))),
    }
}

fn number(field: &str) -> Result<i64, Other> {
    let number = field.parse();
    number.map_err(|_| Other::Wrong(format!("{field:?} is no number")))
}

fn address(field: &str) -> Result<u64, Other> {
    let number = field.parse();
    number.map_err(|_| Other::Wrong(format!("{field:?} is no address")))
}

/// Three numbers, of which the second or the third counts something.
fn triple(field: &str) -> Result<(&str, i64, &str), Other> {
    let mut parts = field.split(',');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(first), Some(second), Some(third), None) => Ok((first, number(second)?, third)),
        _ => Err(Other::Wrong(format!("{field:?} are no three numbers"))),
    }
}

#[derive(Default)]
struct Parser {
    found: Arguments,
    send_count: i64,
    receive_count: i64,
    send_size: i64,
    receive_size: i64,
    send_counts: Option<Vec<i64>>,
    receive_counts: Option<Vec<i64>>,
}

impl Parser {
    fn argument(&mut self, kind: u8, field: &str, list: Option<&str>) -> Result<(), Other> {
        let found = &mut self.found;
        match kind {
            b'b' => found.in_place = IN_PLACE.contains(&field),
            b'n' => self.send_count = number(field)?,
            b'm' => self.receive_count = number(field)?,
            b't' => self.send_size = triple(field)?.1,
            b'u' => self.receive_size = triple(field)?.1,
            b'N' | b'M' => match list {
                Some(list) => {
                    let counts = list.split(',').map(number).collect::<Result<_, _>>()?;
                    match kind {
                        b'N' => self.send_counts = Some(counts),
                        _ => self.receive_counts = Some(counts),
                    }
                }
                None => found.lacks_counts = true,
            },
            b'd' => found.destination = number(field)?,
            b's' => found.source = number(field)?,
            b'g' => found.send_tag = number(field)?,
            b'h' => found.receive_tag = number(field)?,
            b'x' => found.root = number(field)?,
            b'k' => found.color = number(field)?,
            b'y' => found.key = number(field)?,
            b'r' => found.request = address(field)?,
            b'q' => {
                let count = u64::try_from(number(field)?);
                found.requests = count
                    .map_err(|_| Other::Wrong(format!("{field:?} is no number of requests")))?;
            }
            b'c' => {
                let (handle, rank, size) = triple(field)?;
                let size = size.parse::<u32>().ok();
                let rank = u32::try_from(rank).ok();
                let (Some(rank), Some(size)) = (rank, size.filter(|&size| size > 0)) else {
                    return Err(Other::Wrong(format!("{field:?} is no communicator")));
                };
                if rank >= size {
                    return Err(Other::Wrong(format!(
                        "rank {rank} is beyond a communicator of {size}"
                    )));
                }
                // Handles may be negative numbers in Fortran and of MPICH.
                let handle = match handle.parse::<i64>() {
                    Ok(handle) => handle as u64,
                    Err(_) => address(handle)?,
                };
                found.communicator = Some(Communicator { handle, rank, size });
            }
            // Addresses and what else has no effect on messages.
            _ => {}
        }
        Ok(())
    }

    fn finish(self, function: Option<Function>) -> Result<Arguments, Other> {
        let mut found = self.found;
        let (send, receive) = (self.send_size, self.receive_size);
        found.send_bytes = bytes(self.send_count, send)?;
        found.receive_bytes = bytes(self.receive_count, receive)?;
        let lists = [
            (self.send_counts, send, &mut found.send_bytes_to),
            (self.receive_counts, receive, &mut found.receive_bytes_from),
        ];
        for (counts, size, list) in lists {
            for count in counts.unwrap_or_default() {
                list.push(bytes(count, size)?);
            }
        }
        match function.map(Function::blocking) {
            Some(Function::SendrecvReplace) => found.receive_bytes = found.send_bytes,
            Some(Function::ReduceScatter) => {
                std::mem::swap(&mut found.send_bytes_to, &mut found.receive_bytes_from);
            }
            _ => {}
        }
        Ok(found)
    }
}

fn bytes(count: i64, size: i64) -> Result<u64, Other> {
    match (u64::try_from(count), u64::try_from(size)) {
        (Ok(count), Ok(size)) => Ok(count.saturating_mul(size)),
        _ => Err(Other::Wrong(format!(
            "{count} elements of {size} bytes are no message"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_those_of_mpis_interface() {
        let call = parse("MPI_Isend:10:4096:300:11,8,8:2:7:0,1,4:9000:12").unwrap();
        assert_eq!(call.function, Some(Function::Isend));
        assert_eq!((call.begin, call.end), (Some(10.0), Some(12.0)));
        let found = call.arguments;
        assert_eq!(
            (found.send_bytes, found.destination, found.send_tag),
            (2400, 2, 7)
        );
        assert_eq!(found.request, 9000);
        let world = Communicator {
            handle: 0,
            rank: 1,
            size: 4,
        };
        assert_eq!(found.communicator, Some(world));
        let call = parse("MPI_Gatherv:1:99:5:1,4,4:88:77:5,6,7:66:0,5,11:1,4,4:2:0,0,3:2").unwrap();
        assert_eq!(call.arguments.send_bytes, 20);
        assert_eq!(call.arguments.receive_bytes_from, [20, 24, 28]);
        assert_eq!(call.arguments.root, 2);
        let call = parse("MPI_Reduce_scatter:1:1:88:77:2,4:1,8,8:3:0,0,2:2").unwrap();
        assert_eq!(call.arguments.send_bytes_to, [16, 32]);
        assert!(call.arguments.in_place);
        // Without the list of counts.
        let call = parse("MPI_Reduce_scatter:1:1:88:77:1,8,8:3:0,0,2:2").unwrap();
        assert!(call.arguments.lacks_counts);
        let call = parse("MPI_Iallreduce:1:5:6:2:1,8,8:3:1140850688,0,2:99:2").unwrap();
        assert_eq!(
            (call.arguments.send_bytes, call.arguments.request),
            (16, 99)
        );
    }

    #[test]
    fn wrong_lines_are_told_and_other_functions_named() {
        let told = |line: &str| match parse(line) {
            Err(Other::Wrong(what)) => what,
            other => panic!("{other:?}"),
        };
        assert!(told("hello").contains("no call of MPI"));
        assert!(told("MPI_:1:2").contains("no call of MPI"));
        assert!(told("MPI_Send:1").contains("cut"));
        assert!(told("MPI_Send:1:2:3:1,4,4:0:0").contains("arguments"));
        assert!(told("MPI_Barrier:1:0,4,4:2").contains("beyond"));
        assert!(told("MPI_Barrier:1:0,0,0:2").contains("no communicator"));
        assert!(told("MPI_Barrier:x:0,0,1:2").contains("no time"));
        assert!(told("MPI_Barrier:1e300:0,0,1:2").contains("no time"));
        assert!(told("MPI_Send:1:2:-3:1,4,4:0:0:0,0,2:2").contains("no message"));
        assert!(told("MPI_Wait:1:z:0:2").contains("no address"));
        assert!(told("MPI_Waitall:1:-5:9:0:2").contains("number of requests"));
        assert_eq!(
            parse("MPI_Type_commit:1:2:3").unwrap_err(),
            Other::Function("MPI_Type_commit".into())
        );
    }
}
