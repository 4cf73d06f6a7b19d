// Package architecture holds the tree of Lockstep to its own rules: who may import whom, what a
// go.mod may say, and that no file needs anything outside of the tree.
//
// Everything is read from the sources as they lie there, so that files behind build tags, tests and
// the modules outside of the workspace count too, and nothing has to compile. Each rule is a
// function from what was read to sentences, one for each fault, that say what to do; none means
// that the rule is kept. What a rule does not name is forbidden: a new folder of the tree has to be
// given its place in [Allowed] first.
package architecture
