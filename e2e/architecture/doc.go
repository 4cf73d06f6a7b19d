// Package architecture checks the rules for the tree: allowed imports, go.mod files, and no paths
// outside of the tree. It reads sources as text, so files behind build tags, tests and modules
// outside of the workspace count too, and nothing is compiled. Each rule is a function that returns
// a sentence for each fault, with what to do. Everything that is not named in [Allowed] is
// forbidden: a new folder needs a layer there first.
package architecture
