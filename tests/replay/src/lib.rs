//! Tests of recording and replaying ranks on this machine, without guests; `programs/` has the MPI programs.
