// Package decide advances the admission of jobs: it applies what happened to the chain of a job, and evaluates match
// conditions and policies, until a web server must be asked or admission has ended. It does no I/O.
//
// Before anything else, a job gets the current revisions of the controllers that it waits for. So a controller that was
// changed, disabled or deleted decides about no job with its old settings.
package decide
