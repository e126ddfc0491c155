//! The C header and this crate must state the same interface: a C program prints the header's constants, offsets and one encoded
//! record, and the tests compare.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodescope_hypercall::record::{self, section};
use nodescope_hypercall::{
    Completion, Function, MpiRecord, Operation, Peer, Reduction, Status, Tag, ThreadId, call,
    identity, limits,
};
use nodescope_test_needs::{Need, have};

fn tracer_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-images/tracer")
}

/// Compiles a C program that includes the tracer's header, and returns its output. Returns `None`, so that the test is skipped, without a C
/// compiler.
fn run_c(source: &str) -> Option<Vec<u8>> {
    if !have(Need::Compiler, &["gcc"]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let (input, program) = (folder.path().join("print.c"), folder.path().join("print"));
    std::fs::write(&input, source).expect("write the C source");
    let compiled = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(&input)
        .arg("-I")
        .arg(tracer_sources())
        .output()
        .expect("run gcc");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let ran = Command::new(&program).output().expect("run the C program");
    assert!(ran.status.success(), "{:?}", ran.status);
    Some(ran.stdout)
}

#[test]
fn constants_agree() {
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let mut names = Vec::new();
    let mut expect = |name: &str, value: u64| {
        names.push(name.to_string());
        expected.insert(name.to_string(), value);
    };
    expect("NODESCOPE_LEAF", nodescope_hypercall::LEAF.into());
    expect("NODESCOPE_SIGNATURE", nodescope_hypercall::SIGNATURE.into());
    expect(
        "NODESCOPE_ABI_VERSION",
        nodescope_hypercall::ABI_VERSION.into(),
    );
    expect(
        "NODESCOPE_TRANSPORT_DIRECT",
        nodescope_hypercall::TRANSPORT_DIRECT.into(),
    );
    expect(
        "NODESCOPE_TRANSPORT_DOORBELL",
        nodescope_hypercall::TRANSPORT_DOORBELL.into(),
    );
    expect(
        "NODESCOPE_DOORBELL_PORT",
        nodescope_hypercall::DOORBELL_PORT.into(),
    );
    for (name, status) in [
        ("OK", Status::Ok),
        ("BAD_OPERATION", Status::BadOperation),
        ("UNREADABLE", Status::Unreadable),
        ("UNWRITABLE", Status::Unwritable),
        ("REFUSED", Status::Refused),
        ("BAD_ARGUMENT", Status::BadArgument),
        ("OVER_LIMIT", Status::OverLimit),
    ] {
        expect(&format!("NODESCOPE_{name}"), status as u64);
    }
    for (name, operation) in [
        ("PROBE", Operation::Probe),
        ("HELLO", Operation::Hello),
        ("MPI_ENTER", Operation::MpiEnter),
        ("MPI_EVENT", Operation::MpiEvent),
        ("MPI_POLL_FAILED", Operation::MpiPollFailed),
        ("OPENMP_EVENT", Operation::OpenMpEvent),
        ("OPEN_WINDOW", Operation::OpenWindow),
        ("CLOSE_WINDOW", Operation::CloseWindow),
        ("MARK", Operation::Mark),
        ("NODE_IDENTITY", Operation::NodeIdentity),
        ("MESSAGE", Operation::Message),
        ("PUT_FILE", Operation::PutFile),
        ("JOB_EXIT", Operation::JobExit),
    ] {
        expect(&format!("NODESCOPE_OP_{name}"), operation as u64);
    }
    expect("NODESCOPE_MAX_NAME", limits::NAME);
    expect("NODESCOPE_MAX_MESSAGE", limits::MESSAGE);
    expect("NODESCOPE_MAX_CHUNK", limits::CHUNK);
    expect("NODESCOPE_MAX_RECORDS", limits::RECORDS);
    for (name, kind) in [
        ("SEND_BYTES", section::SEND_BYTES),
        ("RECEIVE_BYTES", section::RECEIVE_BYTES),
        ("REQUESTS", section::REQUESTS),
        ("COMPLETIONS", section::COMPLETIONS),
        ("MEMBERS", section::MEMBERS),
        ("PREPARED", section::PREPARED),
        ("DESTINATIONS", section::DESTINATIONS),
        ("SOURCES", section::SOURCES),
        ("REMOTE_MEMBERS", section::REMOTE_MEMBERS),
        ("NAME", section::NAME),
        ("MODULE", section::MODULE),
    ] {
        expect(&format!("NODESCOPE_SECTION_{name}"), kind.into());
    }
    for (name, flag) in [
        ("IN_PLACE", record::Flags::IN_PLACE),
        ("POLL_RUN", record::Flags::POLL_RUN),
        ("CALL_SITE_IN_PROGRAM", record::Flags::CALL_SITE_IN_PROGRAM),
        ("TAIL_DROPPED", record::Flags::TAIL_DROPPED),
        ("INTERCOMM", record::Flags::INTERCOMM),
        ("LARGE_COUNT", record::Flags::LARGE_COUNT),
    ] {
        expect(&format!("NODESCOPE_FLAG_{name}"), flag.0.into());
    }
    for (name, reduction) in [
        ("NONE", Reduction::None),
        ("MAX", Reduction::Max),
        ("SUM", Reduction::Sum),
        ("BXOR", Reduction::Bxor),
        ("MINLOC", Reduction::MinLoc),
        ("NO_OP", Reduction::NoOp),
        ("USER", Reduction::User),
    ] {
        expect(&format!("NODESCOPE_REDUCTION_{name}"), reduction as u64);
    }
    for (name, size) in [
        ("hello", call::HELLO),
        ("identity", identity::HEADER),
        ("mpi_record", record::HEADER),
        ("completion", record::COMPLETION),
        ("section", 8),
    ] {
        expect(&format!("sizeof(struct nodescope_{name})"), size as u64);
    }
    for &function in Function::ALL {
        expect(
            &function.name().replacen("MPI_", "NODESCOPE_MPI_", 1),
            function as u64,
        );
    }

    let mut source =
        String::from("#include <stdio.h>\n#include \"nodescope.h\"\nint main(void) {\n");
    for name in &names {
        source += &format!("printf(\"%s=%llu\\n\", \"{name}\", (unsigned long long)({name}));\n");
    }
    source += "#define COUNT(name, number) +1\nprintf(\"functions=%d\\n\", 0 NODESCOPE_MPI_FUNCTIONS(COUNT));\nreturn 0; }\n";
    expected.insert("functions".into(), Function::ALL.len() as u64);
    let Some(output) = run_c(&source) else { return };
    let printed: BTreeMap<String, u64> = String::from_utf8(output)
        .expect("text")
        .lines()
        .map(|line| {
            let (name, value) = line.rsplit_once('=').expect("name=value");
            (name.to_string(), value.parse().expect("a number"))
        })
        .collect();
    assert_eq!(printed, expected);
}

/// A process that may not use the doorbell's port must find that out and survive, even if it blocks or ignores SIGSEGV. Its handler and
/// signal mask must not change.
#[test]
fn a_process_without_permission_survives_the_doorbell() {
    let source = r#"
#include "nodescope.h"
static void handler(int signal) { (void)signal; }
int main(void) {
    const struct sigaction actions[] = {{.sa_handler = SIG_DFL}, {.sa_handler = SIG_IGN}, {.sa_handler = handler}};
    for (int i = 0; i < 6; i++) {
        struct sigaction after;
        sigset_t segv, before, mask;
        sigemptyset(&segv);
        sigaddset(&segv, SIGSEGV);
        sigprocmask(i % 2 ? SIG_BLOCK : SIG_UNBLOCK, &segv, NULL);
        sigprocmask(SIG_BLOCK, NULL, &before);
        sigaction(SIGSEGV, &actions[i / 2], NULL);
        if (nodescope_may_ring() || nodescope_rings)
            return 1;
        sigaction(SIGSEGV, NULL, &after);
        sigprocmask(SIG_BLOCK, NULL, &mask);
        if (after.sa_handler != actions[i / 2].sa_handler)
            return 2;
        for (int signal = 1; signal < 65; signal++)
            if (sigismember(&before, signal) != sigismember(&mask, signal))
                return 3;
    }
    return 0;
}
"#;
    run_c(source);
}

#[test]
fn layouts_agree() {
    let source = r#"
#include <stdio.h>
#include <string.h>
#include "nodescope.h"
int main(void) {
    struct { struct nodescope_mpi_record r; struct nodescope_section s; uint64_t serials[2];
             struct nodescope_section c; struct nodescope_completion done; struct nodescope_section m; int32_t members[4];
             struct nodescope_section o; int32_t remote[2]; struct nodescope_section d; int32_t destinations[2];
             struct nodescope_section f; int32_t sources[2]; struct nodescope_section n; char name[8];
             struct nodescope_section l; char module[16]; } x;
    memset(&x, 0, sizeof x);
    x.r = (struct nodescope_mpi_record){ .size = sizeof x, .function = NODESCOPE_MPI_Waitany, .flags = 5, .sequence = 3, .pid = 4,
        .tid = 5, .rank = 6, .result = -7, .communicator = 8, .call_site = 9, .destination = -2, .send_tag = 11, .source = -3,
        .receive_tag = -3, .root = -4, .reduction = 15, .send_bytes = 16, .receive_bytes = 17, .request = 18, .calls = 19,
        .new_communicator = 20, .communicator_size = 21, .element_size = 22, .sections = 8, .detail = 28, .object = 29, .offset = 30, .call_module = 31, .element_blocks = 32 };
    x.r.reduction = NODESCOPE_REDUCTION_USER;
    x.s = (struct nodescope_section){ NODESCOPE_SECTION_REQUESTS, 2 };
    x.serials[0] = 100; x.serials[1] = 0;
    x.c = (struct nodescope_section){ NODESCOPE_SECTION_COMPLETIONS, 1 };
    x.done = (struct nodescope_completion){ .request = 23, .bytes = 24, .index = 25, .source = 26, .tag = 27, .cancelled = 1 };
    x.m = (struct nodescope_section){ NODESCOPE_SECTION_MEMBERS, 3 };
    x.members[0] = 1; x.members[1] = 0; x.members[2] = -4;
    x.o = (struct nodescope_section){ NODESCOPE_SECTION_REMOTE_MEMBERS, 1 };
    x.remote[0] = 9;
    x.d = (struct nodescope_section){ NODESCOPE_SECTION_DESTINATIONS, 2 };
    x.destinations[0] = 1; x.destinations[1] = -2;
    x.f = (struct nodescope_section){ NODESCOPE_SECTION_SOURCES, 1 };
    x.sources[0] = 2;
    x.n = (struct nodescope_section){ NODESCOPE_SECTION_NAME, 3 };
    memcpy(x.name, "a.b", 3);
    x.l = (struct nodescope_section){ NODESCOPE_SECTION_MODULE, 9 };
    memcpy(x.module, "liba.so.1", 9);
    return fwrite(&x, sizeof x, 1, stdout) != 1;
}
"#;
    let Some(bytes) = run_c(source) else { return };
    let mut expected = MpiRecord::new(
        Function::Waitany,
        ThreadId { pid: 4, tid: 5 },
        Peer::Rank(6),
        3,
    );
    expected.flags = record::Flags(5);
    expected.result = -7;
    expected.communicator = 8;
    expected.call_site = 9;
    expected.destination = Peer::Null;
    expected.send_tag = Tag::Value(11);
    expected.source = Peer::Any;
    expected.receive_tag = Tag::Any;
    expected.root = Peer::Outside;
    expected.reduction = Reduction::User;
    expected.send_bytes = 16;
    expected.receive_bytes = 17;
    expected.request = 18;
    expected.calls = 19;
    expected.new_communicator = 20;
    expected.communicator_size = 21;
    expected.element_size = 22;
    expected.element_blocks = 32;
    expected.requests = vec![100, 0];
    expected.completions = vec![Completion {
        request: 23,
        bytes: 24,
        index: 25,
        source: Peer::Rank(26),
        tag: Tag::Value(27),
        cancelled: true,
    }];
    expected.members = vec![Peer::Rank(1), Peer::Rank(0), Peer::Outside];
    expected.remote_members = vec![Peer::Rank(9)];
    expected.destinations = vec![Peer::Rank(1), Peer::Null];
    expected.sources = vec![Peer::Rank(2)];
    expected.name = "a.b".into();
    expected.module_name = "liba.so.1".into();
    (expected.detail, expected.object) = (28, 29);
    (expected.offset, expected.call_module) = (30, 31);
    assert_eq!(MpiRecord::decode_all(&bytes), Ok(vec![expected.clone()]));
    let mut encoded = Vec::new();
    expected.encode(&mut encoded);
    assert_eq!(encoded, bytes);
}

#[test]
fn identity_and_hello_layouts_agree() {
    let node = identity::NodeIdentity {
        node: 1,
        nodes: 2,
        vcpus: 3,
        seed: 0x1122_3344_5566_7788,
        ipv4: [10, 0, 0, 2],
        prefix: 24,
        mac: [2, 3, 4, 5, 6, 7],
        name: "n1".into(),
        text: "A=b\n".into(),
    };
    let bytes = node.encode();
    let list = bytes
        .iter()
        .map(u8::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let source = format!(
        r#"
#include <stdio.h>
#include <string.h>
#include "nodescope.h"
static const uint8_t bytes[] = {{{list}}};
int main(void) {{
    struct nodescope_identity id;
    memcpy(&id, bytes, sizeof id);
    printf("%u %u %u %u %llx %u.%u %u %02x%02x %u %s|%.*s", id.version, id.node, id.nodes, id.vcpus, (unsigned long long)id.seed,
           id.ipv4[0], id.ipv4[3], id.prefix, id.mac[0], id.mac[5], id.text_bytes, id.name, (int)id.text_bytes, (const char *)bytes + sizeof id);
    struct nodescope_hello hello = {{ .kind = NODESCOPE_PROCESS_MPI_RANK, .world_rank = 2, .world_size = 4, .pid = 77,
        .flavour = NODESCOPE_FLAVOUR_MPICH, .version = NODESCOPE_ABI_VERSION, .host = "host", .program = "program" }};
    fwrite(&hello, sizeof hello, 1, stdout);
    return 0;
}}
"#
    );
    let Some(output) = run_c(&source) else { return };
    let (text, hello) = output.split_at(output.len() - call::HELLO);
    assert_eq!(
        String::from_utf8_lossy(text),
        "2 1 2 3 1122334455667788 10.2 24 0207 4 n1|A=b\n"
    );

    struct Flat<'a>(&'a [u8]);
    impl nodescope_hypercall::GuestVirtual for Flat<'_> {
        fn read(&mut self, _: u64, buffer: &mut [u8]) -> Result<(), nodescope_hypercall::Fault> {
            buffer.copy_from_slice(self.0);
            Ok(())
        }
        fn write(&mut self, address: u64, _: &[u8]) -> Result<(), nodescope_hypercall::Fault> {
            Err(nodescope_hypercall::Fault {
                address,
                write: true,
            })
        }
    }
    let call = nodescope_hypercall::Call {
        op: Operation::Hello,
        args: [0, hello.len() as u64, 0, 0, 0],
    };
    let request = nodescope_hypercall::decode(&call, &mut Flat(hello)).expect("a hello");
    let nodescope_hypercall::Request::Hello(hello) = request else {
        panic!("{request:?}")
    };
    assert_eq!(
        (hello.rank, hello.world_size, hello.pid),
        (Peer::Rank(2), 4, 77)
    );
    assert_eq!(hello.flavour, nodescope_hypercall::Flavour::Mpich);
    assert_eq!(
        (hello.host.as_str(), hello.program.as_str()),
        ("host", "program")
    );
}
