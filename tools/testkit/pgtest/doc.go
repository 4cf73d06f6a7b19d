// Package pgtest gives tests PostgreSQL: [Database] an empty database for this test on the shared server,
// [Prepared] a database with empty tables that other tests have used before,
// [Server] a server for this test alone, for tests that kill it.
//
// The shared server starts with the first call of Database and is stopped by [Main], which a
// package calls from TestMain; Main also fails the package when goroutines leak. With DATABASE_URL
// set, Database creates its databases there, as lockstep_test_<random>, and no server is started. A
// test that cannot get its database fails: it is never skipped.
package pgtest
