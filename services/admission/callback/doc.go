// Package callback makes and checks the tokens with which a controller answers later.
//
// A token is good for one attempt of one controller to decide about one job, until its round ends, and once. The
// service stores the [Hash] only. A token names nothing: whoever finds one learns nothing about the job.
package callback
