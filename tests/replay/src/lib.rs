//! Tests of recording and replaying ranks on this machine; `programs/` are what they run.
