// Package admission decides which CI jobs may run, and on which runners, before a runner can see them. Its packages are
// pure: they need no database and no network.
//
//   - callback: one-time tokens with which a controller answers later
//   - chain: the decision about a job from the answers of its controllers
//   - payload: the public contract with controllers
//   - policy: controllers without a web server, as lists and rules in CEL
package admission
