// Package api serves people: the Connect services of lockstep.runners.v1, and two resources over plain HTTP.
//
//   - GET /api/v4/jobs/<job>/trace is the output of a job as text, with ranges. With Accept: text/event-stream it
//     follows the output until the job ends.
//   - GET /api/v4/projects/<project>/jobs/<job>/artifacts is the archive of a job. It has the path of GitLab's API for
//     people, since /api/v4/jobs/<job>/artifacts is that for runners, with the token of a job.
//
// A request needs an access token of the state service for the audience runners. It is authenticated by its headers,
// before its body is read. Who may not see a project gets not_found for all that is in it.
package api
