// Package registry is the token endpoint of a container registry: it gives a running job the right to pull and push
// images of its project. A registry that follows Docker's token authentication sends clients here. The job logs in as
// gitlab-ci-token with its job token.
//
// The answer is a JWT that the registry verifies with the JSON Web Key Set of the cell: the keys are those of job
// tokens, and the media type and the issuer tell the two kinds apart. It lists what was asked for and is permitted,
// which may be nothing, as the protocol has it. It is valid for minutes, and no longer than the job token.
package registry
