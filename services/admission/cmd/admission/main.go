// Command admission runs the admission service.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/admission"
)

func main() { service.Main(admission.Program(), admission.DefaultConfig(), admission.Main) }
