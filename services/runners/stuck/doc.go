// Package stuck ends jobs that wait for a runner for too long. [Verdict] decides, and [Watch] carries it out on one
// replica.
package stuck
