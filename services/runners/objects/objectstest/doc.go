// Package objectstest has the tests that every object store passes. [Run] runs them. They kill a process that stores
// an object: TestMain calls [Child], which is that process.
package objectstest
