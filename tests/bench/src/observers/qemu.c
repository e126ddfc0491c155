/* A plug-in for QEMU's user mode that counts reads, writes and instructions by callbacks, as QEMU's own plug-in of caches gets them. The
 * declarations are those of version 1 of QEMU's interface of plug-ins, as far as they are used. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*of_block)(uint64_t id, struct qemu_plugin_tb *block);
typedef void (*of_access)(unsigned vcpu, uint32_t info, uint64_t address, void *userdata);
typedef void (*of_instruction)(unsigned vcpu, void *userdata);

extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, of_block callback);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *instruction, of_access callback, int flags, int accesses, void *userdata);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *instruction, of_instruction callback, int flags, void *userdata);
extern bool qemu_plugin_mem_is_store(uint32_t info);

enum { READS_AND_WRITES = 3 };

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int qemu_plugin_version = 1;

static uint64_t counts[3];

static void access(unsigned vcpu, uint32_t info, uint64_t address, void *userdata)
{
    counts[qemu_plugin_mem_is_store(info)]++;
}

static void instruction(unsigned vcpu, void *userdata)
{
    counts[2]++;
}

static void translated(uint64_t id, struct qemu_plugin_tb *block)
{
    for (size_t index = 0; index < qemu_plugin_tb_n_insns(block); index++) {
        struct qemu_plugin_insn *of = qemu_plugin_tb_get_insn(block, index);
        qemu_plugin_register_vcpu_mem_cb(of, access, 0, READS_AND_WRITES, NULL);
        qemu_plugin_register_vcpu_insn_exec_cb(of, instruction, 0, NULL);
    }
}

EXPORTED int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
