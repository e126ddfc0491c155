/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The interface between programs in a guest and the nodescope that runs the guest: the magic CPUID.
 *
 *     in    EAX = NODESCOPE_LEAF, ECX = operation, RSI, RDI, R8, R9, R10 = arguments (64-bit mode; pointers are guest-virtual)
 *     out   EAX = NODESCOPE_SIGNATURE, EBX = transport, ECX = result, EDX = status
 *
 * Where the transport is the doorbell, OUT DX, EAX with DX = NODESCOPE_DOORBELL_PORT takes the place of CPUID. nodescope_attach finds out.
 * On real hardware EAX comes back as something else and nothing happens: the same binaries run anywhere.
 * The Rust side of every constant and layout here is the crate nodescope-hypercall, whose tests compile this header and compare.
 * Everything in memory is little-endian with no implicit padding.
 */
#ifndef NODESCOPE_H
#define NODESCOPE_H

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/io.h>

#define NODESCOPE_ABI_VERSION 2u
#define NODESCOPE_LEAF 0x4E534350u      /* "NSCP", the value in EAX */
#define NODESCOPE_SIGNATURE 0x4E534F4Bu /* "NSOK", the answer in EAX */

/* The answer in EBX. */
#define NODESCOPE_TRANSPORT_DIRECT 1u   /* whoever answers sees the CPUID itself */
#define NODESCOPE_TRANSPORT_DOORBELL 2u /* calls are made by OUT in place of CPUID */
#define NODESCOPE_DOORBELL_PORT 0x5e0u  /* four bytes wide; permission by ioperm(2), inherited by children */

/* Status, the answer in EDX. */
#define NODESCOPE_OK 0u
#define NODESCOPE_BAD_OPERATION 1u /* ECX names no operation of this ABI version */
#define NODESCOPE_UNREADABLE 2u    /* memory not readable now: read a byte of every page of it, then call again */
#define NODESCOPE_UNWRITABLE 3u    /* memory not writable now: write every page of it, then call again */
#define NODESCOPE_REFUSED 4u       /* understood, but the study does not allow or provide it */
#define NODESCOPE_BAD_ARGUMENT 5u  /* over a limit of the call, malformed record, text that is not UTF-8, unsafe file name */
#define NODESCOPE_OVER_LIMIT 6u    /* over a limit of the study, such as for files among the results */

/* Operations, in ECX. */
#define NODESCOPE_OP_PROBE 0u           /* nothing; result: ABI version */
#define NODESCOPE_OP_HELLO 1u           /* RSI -> struct nodescope_hello, RDI its size */
#define NODESCOPE_OP_MPI_ENTER 2u       /* RSI function, RDI pid << 32 | tid, R8 sequence, R9 -> record as known, R10 -> its sections */
#define NODESCOPE_OP_MPI_EVENT 3u       /* RSI -> records, RDI bytes */
#define NODESCOPE_OP_MPI_POLL_FAILED 4u /* RSI function, RDI pid << 32 | tid, R8 sequence of the run that it joins */
#define NODESCOPE_OP_OPENMP_EVENT 5u    /* reserved: refused */
#define NODESCOPE_OP_OPEN_WINDOW 6u     /* RSI -> name, RDI bytes */
#define NODESCOPE_OP_CLOSE_WINDOW 7u    /* RSI -> name, RDI bytes */
#define NODESCOPE_OP_MARK 8u            /* RSI -> name, RDI bytes */
#define NODESCOPE_OP_NODE_IDENTITY 9u   /* RSI -> buffer, RDI bytes; result: bytes of the whole identity (may exceed RDI) */
#define NODESCOPE_OP_MESSAGE 10u        /* RSI -> text, RDI bytes */
#define NODESCOPE_OP_PUT_FILE 11u       /* RSI -> name, RDI bytes, R8 offset, R9 -> data, R10 bytes | NODESCOPE_PUT_LAST */
#define NODESCOPE_OP_JOB_EXIT 12u       /* RSI exit status */

#define NODESCOPE_PUT_LAST (1ull << 63)

/* Limits; beyond them the status is NODESCOPE_BAD_ARGUMENT. */
#define NODESCOPE_MAX_NAME 255u
#define NODESCOPE_MAX_MESSAGE 4096u
#define NODESCOPE_MAX_CHUNK 65536u
#define NODESCOPE_MAX_RECORDS 1048576u

/* Kinds of processes that say hello. */
#define NODESCOPE_PROCESS_MPI_RANK 1u
#define NODESCOPE_PROCESS_OPENMP 2u
#define NODESCOPE_PROCESS_TOOL 3u

#define NODESCOPE_FLAVOUR_NONE 0u
#define NODESCOPE_FLAVOUR_OPEN_MPI 1u
#define NODESCOPE_FLAVOUR_MPICH 2u
#define NODESCOPE_FLAVOUR_STANDARD_ABI 3u

/* MPI_ENTER: R9 points to a struct nodescope_mpi_record whose `size` counts it and the sections at R10, which need not follow it in
 * memory; 0 for a call whose arguments are not told. The host keeps them until the call ends, for the case that it never does. What
 * it cannot read then and there it does without. */
struct nodescope_hello {
    uint32_t kind;
    int32_t world_rank; /* -1: none */
    uint32_t world_size;
    uint32_t pid;
    uint32_t flavour;
    uint32_t version; /* NODESCOPE_ABI_VERSION */
    char host[64];    /* NUL-terminated */
    char program[64]; /* NUL-terminated, the program's short name */
};

/* The answer to NODESCOPE_OP_NODE_IDENTITY; `text_bytes` bytes of UTF-8 "key=value" lines follow. */
struct nodescope_identity {
    uint32_t version; /* NODESCOPE_ABI_VERSION */
    uint32_t node;    /* 0 .. nodes - 1 */
    uint32_t nodes;
    uint32_t vcpus;
    uint64_t seed;
    uint8_t ipv4[4];
    uint8_t prefix; /* bits of the network part of ipv4 */
    uint8_t reserved0;
    uint8_t mac[6];
    uint32_t text_bytes;
    char name[64]; /* NUL-terminated host name */
};

/* Functions. Numbers are for ever: append, never renumber. X(name, number) */
#define NODESCOPE_MPI_FUNCTIONS(X)                                                                                         \
    X(Init, 1) X(Init_thread, 2) X(Finalize, 3) X(Abort, 4) X(Send, 10) X(Bsend, 11) X(Ssend, 12) X(Rsend, 13)             \
    X(Recv, 14) X(Sendrecv, 15) X(Sendrecv_replace, 16) X(Probe, 17) X(Iprobe, 18) X(Mprobe, 19) X(Improbe, 20)            \
    X(Mrecv, 21) X(Isend, 30) X(Ibsend, 31) X(Issend, 32) X(Irsend, 33) X(Irecv, 34) X(Imrecv, 35) X(Isendrecv, 36)        \
    X(Isendrecv_replace, 37) X(Send_init, 40) X(Bsend_init, 41) X(Ssend_init, 42) X(Rsend_init, 43) X(Recv_init, 44)       \
    X(Start, 45) X(Startall, 46) X(Psend_init, 47) X(Precv_init, 48) X(Wait, 50) X(Waitall, 51) X(Waitany, 52)             \
    X(Waitsome, 53) X(Test, 54) X(Testall, 55) X(Testany, 56) X(Testsome, 57) X(Request_free, 58) X(Cancel, 59)            \
    X(Request_get_status, 60) X(Pready, 61) X(Pready_range, 62) X(Pready_list, 63) X(Parrived, 64)                         \
    X(Grequest_start, 65) X(Grequest_complete, 66) X(Barrier, 70) X(Bcast, 71) X(Reduce, 72) X(Allreduce, 73)              \
    X(Gather, 74) X(Gatherv, 75) X(Scatter, 76) X(Scatterv, 77) X(Allgather, 78) X(Allgatherv, 79) X(Alltoall, 80)         \
    X(Alltoallv, 81) X(Alltoallw, 82) X(Reduce_scatter, 83) X(Reduce_scatter_block, 84) X(Scan, 85) X(Exscan, 86)          \
    X(Ibarrier, 100) X(Ibcast, 101) X(Ireduce, 102) X(Iallreduce, 103) X(Igather, 104) X(Igatherv, 105)                    \
    X(Iscatter, 106) X(Iscatterv, 107) X(Iallgather, 108) X(Iallgatherv, 109) X(Ialltoall, 110) X(Ialltoallv, 111)         \
    X(Ialltoallw, 112) X(Ireduce_scatter, 113) X(Ireduce_scatter_block, 114) X(Iscan, 115) X(Iexscan, 116)                 \
    X(Barrier_init, 120) X(Bcast_init, 121) X(Reduce_init, 122) X(Allreduce_init, 123) X(Gather_init, 124)                 \
    X(Gatherv_init, 125) X(Scatter_init, 126) X(Scatterv_init, 127) X(Allgather_init, 128) X(Allgatherv_init, 129)         \
    X(Alltoall_init, 130) X(Alltoallv_init, 131) X(Alltoallw_init, 132) X(Reduce_scatter_init, 133)                        \
    X(Reduce_scatter_block_init, 134) X(Scan_init, 135) X(Exscan_init, 136) X(Comm_dup, 150) X(Comm_split, 151)            \
    X(Comm_create, 152) X(Comm_free, 153) X(Comm_split_type, 154) X(Comm_create_group, 155) X(Comm_dup_with_info, 156)     \
    X(Comm_idup, 157) X(Cart_create, 158) X(Cart_sub, 159) X(Graph_create, 160) X(Dist_graph_create, 161)                  \
    X(Dist_graph_create_adjacent, 162) X(Intercomm_create, 163) X(Intercomm_merge, 164) X(Comm_disconnect, 165)            \
    X(Comm_idup_with_info, 166) X(Comm_create_from_group, 167) X(Intercomm_create_from_groups, 168) X(Comm_spawn, 180)     \
    X(Comm_spawn_multiple, 181) X(Comm_accept, 182) X(Comm_connect, 183) X(Comm_join, 184) X(Open_port, 185)               \
    X(Close_port, 186) X(Publish_name, 187) X(Unpublish_name, 188) X(Lookup_name, 189) X(Comm_get_parent, 190)             \
    X(Neighbor_allgather, 200) X(Neighbor_allgatherv, 201) X(Neighbor_alltoall, 202) X(Neighbor_alltoallv, 203)            \
    X(Neighbor_alltoallw, 204) X(Ineighbor_allgather, 205) X(Ineighbor_allgatherv, 206) X(Ineighbor_alltoall, 207)         \
    X(Ineighbor_alltoallv, 208) X(Ineighbor_alltoallw, 209) X(Neighbor_allgather_init, 210)                                \
    X(Neighbor_allgatherv_init, 211) X(Neighbor_alltoall_init, 212) X(Neighbor_alltoallv_init, 213)                        \
    X(Neighbor_alltoallw_init, 214) X(Win_create, 220) X(Win_allocate, 221) X(Win_allocate_shared, 222)                    \
    X(Win_create_dynamic, 223) X(Win_attach, 224) X(Win_detach, 225) X(Win_free, 226) X(Win_fence, 227)                    \
    X(Win_lock, 228) X(Win_unlock, 229) X(Win_lock_all, 230) X(Win_unlock_all, 231) X(Win_flush, 232)                      \
    X(Win_flush_all, 233) X(Win_flush_local, 234) X(Win_flush_local_all, 235) X(Win_sync, 236) X(Win_post, 237)            \
    X(Win_start, 238) X(Win_complete, 239) X(Win_wait, 240) X(Win_test, 241) X(Win_set_info, 242) X(Put, 250)              \
    X(Get, 251) X(Accumulate, 252) X(Get_accumulate, 253) X(Fetch_and_op, 254) X(Compare_and_swap, 255) X(Rput, 256)       \
    X(Rget, 257) X(Raccumulate, 258) X(Rget_accumulate, 259) X(File_open, 270) X(File_close, 271) X(File_delete, 272)      \
    X(File_set_size, 273) X(File_preallocate, 274) X(File_set_view, 275) X(File_sync, 276) X(File_seek, 277)               \
    X(File_seek_shared, 278) X(File_set_atomicity, 279) X(File_set_info, 280) X(File_get_size, 281)                        \
    X(File_get_position_shared, 282) X(File_read_at, 290) X(File_read_at_all, 291) X(File_read, 292)                       \
    X(File_read_all, 293) X(File_read_shared, 294) X(File_read_ordered, 295) X(File_iread_at, 296)                         \
    X(File_iread_at_all, 297) X(File_iread, 298) X(File_iread_all, 299) X(File_iread_shared, 300)                          \
    X(File_read_at_all_begin, 301) X(File_read_at_all_end, 302) X(File_read_all_begin, 303) X(File_read_all_end, 304)      \
    X(File_read_ordered_begin, 305) X(File_read_ordered_end, 306) X(File_write_at, 310) X(File_write_at_all, 311)          \
    X(File_write, 312) X(File_write_all, 313) X(File_write_shared, 314) X(File_write_ordered, 315)                         \
    X(File_iwrite_at, 316) X(File_iwrite_at_all, 317) X(File_iwrite, 318) X(File_iwrite_all, 319)                          \
    X(File_iwrite_shared, 320) X(File_write_at_all_begin, 321) X(File_write_at_all_end, 322)                               \
    X(File_write_all_begin, 323) X(File_write_all_end, 324) X(File_write_ordered_begin, 325)                               \
    X(File_write_ordered_end, 326) X(Pack, 340) X(Unpack, 341) X(Pack_external, 342) X(Unpack_external, 343)               \
    X(Reduce_local, 344) X(Buffer_attach, 345) X(Buffer_detach, 346)

enum nodescope_mpi_function {
#define NODESCOPE_MPI_ENUM(name, number) NODESCOPE_MPI_##name = number,
    NODESCOPE_MPI_FUNCTIONS(NODESCOPE_MPI_ENUM)
#undef NODESCOPE_MPI_ENUM
};

/* Reduction operations. */
#define NODESCOPE_REDUCTION_NONE 0u
#define NODESCOPE_REDUCTION_MAX 1u
#define NODESCOPE_REDUCTION_MIN 2u
#define NODESCOPE_REDUCTION_SUM 3u
#define NODESCOPE_REDUCTION_PROD 4u
#define NODESCOPE_REDUCTION_LAND 5u
#define NODESCOPE_REDUCTION_BAND 6u
#define NODESCOPE_REDUCTION_LOR 7u
#define NODESCOPE_REDUCTION_BOR 8u
#define NODESCOPE_REDUCTION_LXOR 9u
#define NODESCOPE_REDUCTION_BXOR 10u
#define NODESCOPE_REDUCTION_MAXLOC 11u
#define NODESCOPE_REDUCTION_MINLOC 12u
#define NODESCOPE_REDUCTION_REPLACE 13u
#define NODESCOPE_REDUCTION_NO_OP 14u
#define NODESCOPE_REDUCTION_USER 255u

/* Where a field holds a rank or a tag; other negative values do not occur. */
#define NODESCOPE_NONE (-1)      /* the call has no such argument, or it is not significant here */
#define NODESCOPE_PROC_NULL (-2) /* MPI_PROC_NULL, and MPI_ROOT of an intercommunicator's root */
#define NODESCOPE_ANY (-3)       /* MPI_ANY_SOURCE, MPI_ANY_TAG */
#define NODESCOPE_OUTSIDE (-4)   /* a process that is not in this MPI_COMM_WORLD */

/* Communicator ids; all others have the top bit set. */
#define NODESCOPE_COMM_NONE 0ull
#define NODESCOPE_COMM_WORLD 1ull
#define NODESCOPE_COMM_SELF 2ull

/* Flags of a record. */
#define NODESCOPE_FLAG_IN_PLACE 1u             /* MPI_IN_PLACE was given */
#define NODESCOPE_FLAG_POLL_RUN 2u             /* `calls` consecutive polls that all found nothing */
#define NODESCOPE_FLAG_CALL_SITE_IN_PROGRAM 4u /* the call was made from the main program */
#define NODESCOPE_FLAG_TAIL_DROPPED 8u         /* sections that would not fit NODESCOPE_MAX_RECORDS were left out */
#define NODESCOPE_FLAG_INTERCOMM 16u           /* the communicator is an intercommunicator; peers are of the remote group */
#define NODESCOPE_FLAG_LARGE_COUNT 32u         /* MPI_X_c was called; it is recorded as MPI_X */

/* One MPI call. Followed by `sections` sections; `size` counts everything and is a multiple of 8. */
struct nodescope_mpi_record {
    uint32_t size;
    uint16_t function;
    uint16_t flags;
    uint64_t sequence; /* per thread, in the order of entry, from 0 */
    uint32_t pid;
    uint32_t tid;
    int32_t rank;   /* in MPI_COMM_WORLD, or NODESCOPE_NONE */
    int32_t result; /* the return code; 0 is MPI_SUCCESS */
    uint64_t communicator;
    uint64_t call_site; /* return address of the call, relative to the load address of its module */
    int32_t destination;
    int32_t send_tag;
    int32_t source; /* as asked for; what was matched is in the completions */
    int32_t receive_tag;
    int32_t root;
    uint32_t reduction;
    uint64_t send_bytes;    /* none go to MPI_PROC_NULL */
    uint64_t receive_bytes; /* room asked for by receives, none of MPI_PROC_NULL; what came is in the completions */
    uint64_t request;       /* serial of the operation started, or by MPI_*_init prepared; 0 none */
    uint64_t calls;         /* 1, or the length of a poll run */
    uint64_t new_communicator;
    uint32_t communicator_size; /* of an intercommunicator: the remote group */
    uint32_t element_size;      /* MPI_Type_size of the element sent or, failing that, received */
    uint32_t sections;
    uint32_t detail;      /* what only some functions have, such as the thread level provided */
    uint64_t object;      /* window or file that the call works on, of MPI_Init* the program (job-id.h); 0 none */
    uint64_t offset;      /* explicit offset in a file, displacement at the target of an RMA operation */
    uint64_t call_module; /* module of the call site; 0 the main program */
    uint64_t element_blocks; /* contiguous blocks of memory in an element that the program made, 1: contiguous; 0: predefined, or unknown */
};

/* A section: this, then `count` elements, then zeros up to a multiple of 8. */
struct nodescope_section {
    uint32_t kind;
    uint32_t count;
};
#define NODESCOPE_SECTION_SEND_BYTES 1u    /* uint64_t: bytes to each rank of the communicator (v forms) */
#define NODESCOPE_SECTION_RECEIVE_BYTES 2u /* uint64_t: bytes from each */
#define NODESCOPE_SECTION_REQUESTS 3u      /* uint64_t: serials of the requests given; 0: null or unknown */
#define NODESCOPE_SECTION_COMPLETIONS 4u   /* struct nodescope_completion */
#define NODESCOPE_SECTION_MEMBERS 5u       /* int32_t: world ranks of the new communicator, from its (each side's) rank 0 only */
#define NODESCOPE_SECTION_PREPARED 6u      /* uint64_t: serials of the preparations that a start starts, like its requests */
#define NODESCOPE_SECTION_DESTINATIONS 7u   /* int32_t: neighbours sent to, targets of an epoch */
#define NODESCOPE_SECTION_SOURCES 8u        /* int32_t: neighbours received from, origins of an epoch */
#define NODESCOPE_SECTION_REMOTE_MEMBERS 9u /* int32_t: the other side of a new intercommunicator */
#define NODESCOPE_SECTION_NAME 10u          /* char: of a file, port, service or program */
#define NODESCOPE_SECTION_MODULE 11u        /* char: file name of the call site's module, when it is first used */

struct nodescope_completion {
    uint64_t request; /* serial, or 0 */
    uint64_t bytes;   /* received; 0 for anything but a receive */
    uint32_t index;   /* in the array of requests given */
    int32_t source;   /* world rank matched, NODESCOPE_NONE for anything but a receive or a probe */
    int32_t tag;
    uint32_t cancelled; /* 0 or 1 */
};

struct nodescope_answer {
    uint32_t signature, transport, result, status;
};

/* The calls of this source file go through the doorbell; nodescope_choose decides. */
static int nodescope_rings;

/* The direct way has one branch more than CPUID alone, which is never taken; the doorbell's way lies elsewhere. */
static inline struct nodescope_answer nodescope_cpuid(uint32_t operation, uint64_t a0, uint64_t a1, uint64_t a2, uint64_t a3,
                                                      uint64_t a4) {
    struct nodescope_answer answer;
    register uint64_t r8 __asm__("r8") = a2;
    register uint64_t r9 __asm__("r9") = a3;
    register uint64_t r10 __asm__("r10") = a4;
    __asm__ volatile("cmpl $0, %[rings]\n\t"
                     "jne 1f\n\t"
                     "cpuid\n"
                     "2:\n\t"
                     ".subsection 1\n"
                     "1:\n\t"
                     "movl %[port], %%edx\n\t"
                     "outl %%eax, %%dx\n\t"
                     "jmp 2b\n\t"
                     ".previous"
                     : "=a"(answer.signature), "=b"(answer.transport), "=c"(answer.result), "=d"(answer.status)
                     : "a"(NODESCOPE_LEAF), "c"(operation), "S"(a0), "D"(a1), "r"(r8), "r"(r9), "r"(r10), [rings] "m"(nodescope_rings),
                       [port] "i"(NODESCOPE_DOORBELL_PORT)
                     : "memory");
    return answer;
}

static inline int nodescope_answered(struct nodescope_answer answer) {
    return answer.signature == NODESCOPE_SIGNATURE &&
           (answer.transport == NODESCOPE_TRANSPORT_DIRECT || answer.transport == NODESCOPE_TRANSPORT_DOORBELL);
}

static sigjmp_buf nodescope_no_port;

static inline void nodescope_fault(int signal) {
    siglongjmp(nodescope_no_port, signal);
}

/* Tries the doorbell: without permission for its port, OUT raises #GP (SDM vol. 1 §19.5), which Linux makes a SIGSEGV. Linux ends a
 * process that blocks a signal of this kind. Handler and mask are afterwards as before. */
static inline int nodescope_may_ring(void) {
    struct sigaction fault = {.sa_handler = nodescope_fault}, handler;
    sigset_t segv, mask;
    volatile int may = 0;
    if (sigaction(SIGSEGV, &fault, &handler))
        return 0;
    sigemptyset(&segv);
    sigaddset(&segv, SIGSEGV);
    sigprocmask(SIG_UNBLOCK, &segv, &mask);
    nodescope_rings = 1;
    if (!sigsetjmp(nodescope_no_port, 1))
        may = nodescope_answered(nodescope_cpuid(NODESCOPE_OP_PROBE, 0, 0, 0, 0, 0));
    nodescope_rings = may;
    sigprocmask(SIG_SETMASK, &mask, NULL);
    sigaction(SIGSEGV, &handler, NULL);
    return may;
}

enum { NODESCOPE_ABSENT = 0, NODESCOPE_PRESENT = 1, NODESCOPE_NO_PERMISSION = 2 };

/* Chooses the transport of this file's calls, from the answer to a direct probe. */
static inline int nodescope_choose(struct nodescope_answer probe) {
    if (!nodescope_answered(probe))
        return NODESCOPE_ABSENT;
    if (probe.transport == NODESCOPE_TRANSPORT_DIRECT)
        return NODESCOPE_PRESENT;
    /* An inherited permission is tried first: Linux shares one bitmap among heirs, but copies the bitmap for each process that asks. */
    if (nodescope_may_ring())
        return NODESCOPE_PRESENT;
    return !ioperm(NODESCOPE_DOORBELL_PORT, 4, 1) && nodescope_may_ring() ? NODESCOPE_PRESENT : NODESCOPE_NO_PERMISSION;
}

/* Looks for a nodescope, and for the transport by which this file's calls get through to it. A program calls this once, before its
 * threads make any call: until then calls are direct, which a node with a doorbell may not hear. */
static inline int nodescope_attach(void) {
    nodescope_rings = 0;
    return nodescope_choose(nodescope_cpuid(NODESCOPE_OP_PROBE, 0, 0, 0, 0, 0));
}

/* Brings every page of a buffer into memory, for writing too if asked: the host does not take page faults for the guest. */
static inline void nodescope_touch(volatile uint8_t *start, uint64_t bytes, int write) {
    for (uint64_t at = 0; at < bytes;) {
        uint8_t value = start[at];
        if (write)
            start[at] = value;
        uint64_t step = 4096 - ((uintptr_t)(start + at) & 4095);
        at = (bytes - at > step) ? at + step : bytes;
    }
}

/* A call with up to two buffers, (a0, a1 bytes) and (a3, a4 bytes); a3 is null where there is no second. */
static inline struct nodescope_answer nodescope_call(uint32_t operation, void *a0, uint64_t a1, uint64_t a2, void *a3, uint64_t a4) {
    struct nodescope_answer answer;
    /* A page can be evicted between the touch and the call; sixteen evictions in a row are a broken guest. */
    for (int attempt = 0; attempt < 16; attempt++) {
        answer = nodescope_cpuid(operation, (uintptr_t)a0, a1, a2, (uintptr_t)a3, a4);
        if (answer.status != NODESCOPE_UNREADABLE && answer.status != NODESCOPE_UNWRITABLE)
            break;
        int write = answer.status == NODESCOPE_UNWRITABLE;
        nodescope_touch((volatile uint8_t *)a0, a1, write);
        if (a3)
            nodescope_touch((volatile uint8_t *)a3, a4 & ~NODESCOPE_PUT_LAST, write);
    }
    return answer;
}

#endif
