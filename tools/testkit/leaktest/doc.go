// Package leaktest fails the tests of a package when goroutines leak. A package without a shared
// server calls [Main] from TestMain; packages pgtest and labtest call it themselves.
//
// Closed connections and servers have goroutines that end soon, but nothing waits for them: those
// of a NATS connection, for example. So leaktest waits 20 s for them. A goroutine that still runs
// then has leaked.
package leaktest
