// Package yamlfile reads YAML files that people write, and reports what is wrong with them: every problem in the order
// of the file, with line, column and what to do instead.
//
// [Format.Read] returns the content as a tree of [Value], without aliases and merge keys. Each value knows its
// position. The work for a file is bounded by the limits of its [Format], which count an alias as often as it is used.
// A decoder embeds [Problems], takes the tree apart with its methods, and returns [Problems.Err].
package yamlfile
