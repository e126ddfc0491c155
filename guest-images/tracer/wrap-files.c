/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* MPI-IO: what is read and written where, and when. */
#include "mpi-wrap.h"

static struct object *on_file(struct call *call, MPI_File file) {
    return call_on_object(call, OBJECT_FILE, HANDLE(file));
}

static void opened(struct call *call, MPI_File file) {
    call->record.object = object_made(OBJECT_FILE, HANDLE(file), call->communicator)->id;
}

/* Explicit offsets count elementary types. */
static void views(struct call *call, MPI_File file, MPI_Datatype type) {
    struct object *object = on_file(call, file);
    if (object)
        object->unit = type_bytes(call, 1, type);
    call->record.element_size = 0;
}

static uint32_t access_of(int mode) {
    return mode & MPI_MODE_RDWR ? 3 : mode & MPI_MODE_WRONLY ? 2 : 1;
}

WRAP(File_open, (MPI_Comm comm, const char *name, int mode, MPI_Info info, MPI_File *file), (comm, name, mode, info, file),
     call_on(call, comm); shared_file_check(call, comm, name, mode); r->detail = access_of(mode); section_text(call, NODESCOPE_SECTION_NAME, name), opened(call, *file))
WRAP(File_close, (MPI_File * file), (file), call_ends_object(call, OBJECT_FILE, HANDLE(*file)), )
WRAP(File_delete, (const char *name, MPI_Info info), (name, info), section_text(call, NODESCOPE_SECTION_NAME, name), )
WRAP(File_set_size, (MPI_File file, MPI_Offset size), (file, size), on_file(call, file); r->offset = size, )
WRAP(File_preallocate, (MPI_File file, MPI_Offset size), (file, size), on_file(call, file); r->offset = size, )
WRAP(File_get_size, (MPI_File file, MPI_Offset *size), (file, size), on_file(call, file), )
WRAP(File_set_view,
     (MPI_File file, MPI_Offset place, MPI_Datatype element, MPI_Datatype type, const char *representation, MPI_Info info),
     (file, place, element, type, representation, info), views(call, file, element); r->offset = place, )
WRAP(File_set_info, (MPI_File file, MPI_Info info), (file, info), on_file(call, file), )
WRAP(File_set_atomicity, (MPI_File file, int flag), (file, flag), on_file(call, file), )
WRAP(File_sync, (MPI_File file), (file), on_file(call, file), )
WRAP(File_seek, (MPI_File file, MPI_Offset offset, int whence), (file, offset, whence), on_file(call, file), )
WRAP(File_seek_shared, (MPI_File file, MPI_Offset offset, int whence), (file, offset, whence), on_file(call, file), )
WRAP(File_get_position_shared, (MPI_File file, MPI_Offset *offset), (file, offset), on_file(call, file), )

/* ---- transfers ---- */

static void reads(struct call *call, MPI_File file, MPI_Count count, MPI_Datatype type) {
    on_file(call, file);
    call->record.receive_bytes = type_bytes(call, count, type);
}

static void reads_at(struct call *call, MPI_File file, MPI_Offset offset, MPI_Count count, MPI_Datatype type) {
    struct object *object = on_file(call, file);
    call->record.offset = offset * (object ? object->unit : 1);
    call->record.receive_bytes = type_bytes(call, count, type);
}

static void writes(struct call *call, MPI_File file, MPI_Count count, MPI_Datatype type) {
    reads(call, file, count, type);
    call->record.send_bytes = call->record.receive_bytes;
    call->record.receive_bytes = 0;
}

static void writes_at(struct call *call, MPI_File file, MPI_Offset offset, MPI_Count count, MPI_Datatype type) {
    reads_at(call, file, offset, count, type);
    call->record.send_bytes = call->record.receive_bytes;
    call->record.receive_bytes = 0;
}

/* A file has at most one split collective under way. */
static void splits(struct call *call, MPI_File file) {
    struct object *object = object_of(OBJECT_FILE, HANDLE(file));
    call->record.request = next_serial();
    if (object)
        object->split = call->record.request;
}

static void joins(struct call *call, MPI_File file, const MPI_Status *status, int read) {
    struct object *object = object_of(OBJECT_FILE, HANDLE(file));
    call_transferred(call, status, object ? object->split : 0, read);
    if (object)
        object->split = 0;
}

#define READ_END(NAME)                                                                                                         \
    WRAP(NAME, (MPI_File file, void *in, MPI_Status *status), (file, in, status), OWN_STATUS; on_file(call, file),             \
         joins(call, file, status, 1))
#define WRITE_END(NAME)                                                                                                        \
    WRAP(NAME, (MPI_File file, const void *out, MPI_Status *status), (file, out, status), OWN_STATUS; on_file(call, file),     \
         joins(call, file, status, 0))
READ_END(File_read_all_end)
READ_END(File_read_at_all_end)
READ_END(File_read_ordered_end)
WRITE_END(File_write_all_end)
WRITE_END(File_write_at_all_end)
WRITE_END(File_write_ordered_end)

#include "wrap-files.h"
#if LARGE_FORMS
#include "mpi-large.h"
#include "wrap-files.h"
#endif
