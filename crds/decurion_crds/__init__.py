"""What a person writes, and what becomes of it: resources, findings, values, the compiler and its result.

v1alpha1    the resources as models, and `parse_resource`
loader      manifests from files, read as kubectl reads them
schemas     from what stands where a schema is due to a full JSON Schema
values      values spelled and checked as their schema says
structural  the CustomResourceDefinitions, made from the models
findings    what is wrong, one record for each cause
canonical   canonical bytes and digests
compiled    the compiled graph, which drivers, runners and readers share
"""
