// Package cifile parses .gitlab-ci.yml: stages, variables, default and jobs with script, before_script, after_script,
// extends, needs, tags, variables, artifacts, rules (if, when, allow_failure, variables), when, timeout, retry,
// allow_failure (with exit_codes and on_denied_admission) and parallel. YAML anchors and merge keys work.
//
// The meaning of each keyword is that of GitLab's documentation. Anything else is refused: [Parse] returns an *[Error]
// with every problem of the file in the order of the file, each with line, column and what to use instead. A keyword
// with the value null counts as absent.
//
// The work for a file is bounded by [Limits], which count aliases and extends as often as they are used.
// Parse does not check that needs form a graph without cycles; package pipeline does.
package cifile
