/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reading and writing files: included once for each form. */

#define BLOCKING(NAME)                                                                                                         \
    WRAP(NAME, (MPI_File file, void *data, COUNT count, MPI_Datatype type, MPI_Status *status), (file, data, count, type, status), \
         OWN_STATUS; reads(call, file, count, type), call_transferred(call, status, 0, 1))
#define BLOCKING_AT(NAME)                                                                                                      \
    WRAP(NAME, (MPI_File file, MPI_Offset offset, void *data, COUNT count, MPI_Datatype type, MPI_Status *status),          \
         (file, offset, data, count, type, status), OWN_STATUS; reads_at(call, file, offset, count, type),                      \
         call_transferred(call, status, 0, 1))
#define STARTS(NAME)                                                                                                           \
    WRAP(NAME, (MPI_File file, void *data, COUNT count, MPI_Datatype type, MPI_Request *request), (file, data, count, type, request), \
         reads(call, file, count, type), call_starts(call, request, REQUEST_READ))
#define STARTS_AT(NAME)                                                                                                        \
    WRAP(NAME, (MPI_File file, MPI_Offset offset, void *data, COUNT count, MPI_Datatype type, MPI_Request *request),        \
         (file, offset, data, count, type, request), reads_at(call, file, offset, count, type), call_starts(call, request, REQUEST_READ))
#define BEGINS(NAME)                                                                                                           \
    WRAP(NAME, (MPI_File file, void *data, COUNT count, MPI_Datatype type), (file, data, count, type),                      \
         reads(call, file, count, type); splits(call, file), )
BLOCKING(File_read)
BLOCKING(File_read_all)
BLOCKING(File_read_shared)
BLOCKING(File_read_ordered)
BLOCKING_AT(File_read_at)
BLOCKING_AT(File_read_at_all)
STARTS(File_iread)
STARTS(File_iread_all)
STARTS(File_iread_shared)
STARTS_AT(File_iread_at)
STARTS_AT(File_iread_at_all)
BEGINS(File_read_all_begin)
BEGINS(File_read_ordered_begin)
WRAP(File_read_at_all_begin, (MPI_File file, MPI_Offset offset, void *data, COUNT count, MPI_Datatype type),
     (file, offset, data, count, type), reads_at(call, file, offset, count, type); splits(call, file), )
#undef BLOCKING
#undef BLOCKING_AT
#undef STARTS
#undef STARTS_AT
#undef BEGINS

#define BLOCKING(NAME)                                                                                                         \
    WRAP(NAME, (MPI_File file, const void *data, COUNT count, MPI_Datatype type, MPI_Status *status), (file, data, count, type, status), \
         OWN_STATUS; writes(call, file, count, type), call_transferred(call, status, 0, 0))
#define BLOCKING_AT(NAME)                                                                                                      \
    WRAP(NAME, (MPI_File file, MPI_Offset offset, const void *data, COUNT count, MPI_Datatype type, MPI_Status *status),          \
         (file, offset, data, count, type, status), OWN_STATUS; writes_at(call, file, offset, count, type),                      \
         call_transferred(call, status, 0, 0))
#define STARTS(NAME)                                                                                                           \
    WRAP(NAME, (MPI_File file, const void *data, COUNT count, MPI_Datatype type, MPI_Request *request), (file, data, count, type, request), \
         writes(call, file, count, type), call_starts(call, request, REQUEST_OTHER))
#define STARTS_AT(NAME)                                                                                                        \
    WRAP(NAME, (MPI_File file, MPI_Offset offset, const void *data, COUNT count, MPI_Datatype type, MPI_Request *request),        \
         (file, offset, data, count, type, request), writes_at(call, file, offset, count, type), call_starts(call, request, REQUEST_OTHER))
#define BEGINS(NAME)                                                                                                           \
    WRAP(NAME, (MPI_File file, const void *data, COUNT count, MPI_Datatype type), (file, data, count, type),                      \
         writes(call, file, count, type); splits(call, file), )
BLOCKING(File_write)
BLOCKING(File_write_all)
BLOCKING(File_write_shared)
BLOCKING(File_write_ordered)
BLOCKING_AT(File_write_at)
BLOCKING_AT(File_write_at_all)
STARTS(File_iwrite)
STARTS(File_iwrite_all)
STARTS(File_iwrite_shared)
STARTS_AT(File_iwrite_at)
STARTS_AT(File_iwrite_at_all)
BEGINS(File_write_all_begin)
BEGINS(File_write_ordered_begin)
WRAP(File_write_at_all_begin, (MPI_File file, MPI_Offset offset, const void *data, COUNT count, MPI_Datatype type),
     (file, offset, data, count, type), writes_at(call, file, offset, count, type); splits(call, file), )
#undef BLOCKING
#undef BLOCKING_AT
#undef STARTS
#undef STARTS_AT
#undef BEGINS
