// Package labtest gives the tests of a package one real Kubernetes control plane.
//
// It starts with the first call of [Kubeconfig], and is built before if necessary. [Main], which a package
// calls from TestMain, stops it and fails the package when goroutines leak. Each test uses namespaces of its
// own. A test that cannot get the control plane fails: it is never skipped.
package labtest
