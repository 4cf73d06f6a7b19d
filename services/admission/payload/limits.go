package payload

// Limits of documents. They are part of the contract.
const (
	// MaxBytes is the maximum size of a request or an answer.
	MaxBytes = 1 << 20
	// MaxTags is the maximum number of tags of a job, and of each list of tags of an answer.
	MaxTags = 100
	// MaxTagCharacters is the maximum length of a tag.
	MaxTagCharacters = 255
	// MaxRunners is the maximum number of runners in each list of an answer.
	MaxRunners = 1000
	// MaxReasonCharacters is the length to which a reason is cut.
	MaxReasonCharacters = 2000
	// MaxVariables is the maximum number of variables of a request.
	MaxVariables = 1000
)
