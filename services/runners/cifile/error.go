package cifile

import "lockstep.internal/libs/yamlfile"

// What is wrong with a file, and where.
type (
	// Position is a place in the file.
	Position = yamlfile.Position
	// Problem is one thing that is wrong with the file.
	Problem = yamlfile.Problem
	// Error reports what is wrong with a file.
	Error = yamlfile.Error
)
