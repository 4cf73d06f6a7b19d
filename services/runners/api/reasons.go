package api

import "lockstep.internal/services/runners/job"

// sentence explains to people why a job failed; empty for no reason.
func sentence(reason job.FailureReason) string {
	return map[job.FailureReason]string{
		job.ScriptFailure:       "The script ended with an error.",
		job.RunnerSystemFailure: "The runner had an error of its own.",
		job.ExecutionTimeout:    "The job ran longer than its timeout.",
		job.ImagePullFailure:    "The runner could not get the image of the job.",
		job.ConfigurationError:  "The runner could not use the configuration of the job.",
		job.RunnerUnsupported:   "The runner does not support what the job needs.",
		job.UnknownFailure:      "The runner reported a failure without a known reason.",
		job.CanceledByRunner:    "The runner canceled the job.",
		job.MissingDependency:   "An artifact that the job needs is missing.",
		job.StuckOrTimeout:      "No runner took the job in time, or its runner stopped reporting.",
		job.NoMatchingRunner:    "No runner of the cell can take the job.",
		job.DeniedAdmission:     "An admission policy denied the job.",
		job.AdmissionTimeout:    "Admission did not decide about the job in time.",
		job.DataIntegrity:       "The stored definition of the job cannot be read.",
	}[reason]
}
