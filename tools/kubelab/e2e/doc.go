// Package e2e tests the program kubelab: what it promises to those who start it. It is a package of
// its own, so that its test binary does not contain the API server once more.
package e2e
