// Package route decides where a request to an agent goes. Nothing in it reads a clock or a network.
//
// The relay that a request came to from outside decides ([Decide]), waits, and tries elsewhere; whoever it hands the request to follows its [Instruction] and looks for nothing, so
// that no request goes in circles and one place knows why it went where it went.
package route
